--[[ emit(keys, flat): append one event and apply it. The only XADD to the log and the only caller of apply.

`flat` is field, value, …, in a fixed order, type first. `keys` names the keys that apply touches, by role.
Returns the position. Nothing in it can fail: Redis rolls nothing back.
]]
-- use lib/now
local apply = {}

local function fields_of(flat)
  local e = {}
  for i = 1, #flat, 2 do e[flat[i]] = flat[i + 1] end
  return e
end

local function emit(keys, flat) -- luacheck: ignore 211 (replay_event applies, and appends nothing)
  local ms = text(now())
  local position = call("XADD", EVENTS, ms .. "-*", unpack(flat))
  call("HSET", CONTROL, "last_ms", ms)
  local e = fields_of(flat)
  apply[e.type](keys, e, position, now())
  return position
end
