--[[ now(): milliseconds of this partition's clock: Redis TIME, never earlier than the partition's last event.

KEYS[1] is the log and KEYS[2] the control hash in every script. The control hash holds the time of the last event
(`last_ms`, kept by emit; 0 before the first), the gate of a rebuild, and `clock_ms`, a shift of the clock that only the
test setting reads.
]]
-- use lib/call
local EVENTS, CONTROL = KEYS[1], KEYS[2] -- luacheck: ignore 211 (some commands append nothing)
local control = call("HMGET", CONTROL, "gate", "last_ms", "clock_ms")

-- Milliseconds have 13 digits: tostring would keep them, but 15 digits turn to an exponent, so one spelling for all.
local function text(number) return string.format("%.0f", number) end -- luacheck: ignore 211 (not all need it)

local moment
local function now() -- luacheck: ignore 211 (not all ask)
  if moment then return moment end
  local time = redis.call("TIME")
  moment = time[1] * 1000 + math.floor(time[2] / 1000)
  if TEST then moment = moment + (tonumber(control[3] or "") or 0) end
  local last = tonumber(control[2] or "")
  if last and last > moment then moment = last end
  return moment
end

-- A rebuild drops and folds hot state; meanwhile every command is refused. So it is where Redis lost what it had (there is
-- no `last_ms`: handlers.log.Log.begin), or what is written then would stand in front of a history that is yet to come back.
local function gated() -- luacheck: ignore 211 (replay_event runs behind the gate)
  return control[1] or not control[2]
end
