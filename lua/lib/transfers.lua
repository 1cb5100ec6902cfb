--[[ What accounts remember of the newest movements between them, and of grants.

One line each, `<kind>|<id>|<HMAC of the idempotency key>|<other>|<amount>|<position>`, newest first: kind is `out`, `in` or
`grant`; other is the account on the other side, or the shared key of it that the kudos are for.

note_transfer(transfers, kind, id, idempotency, other, amount, position): remember one.
remembered(transfers, kind, id): whether there is one of that kind with that id.
transfers_of(transfers): all of them, newest first, each as a table of its parts by name.
]]
-- use lib/call
-- Of each kind: nobody else's transfers push out the ones that a repeat is known by.
local TRANSFERS_KEPT = 200

local function lines_of(transfers) return call("LRANGE", transfers, "0", "-1") end

local function begins(line, ...)
  local start = table.concat({...}, "|") .. "|"
  return string.sub(line, 1, #start) == start
end

local function note_transfer(transfers, kind, ...) -- luacheck: ignore 211 (who only looks back notes none)
  if call("LPUSH", transfers, table.concat({kind, ...}, "|")) <= TRANSFERS_KEPT then return end
  local alike = 0
  for _, line in ipairs(lines_of(transfers)) do
    if begins(line, kind) then
      alike = alike + 1
      if alike > TRANSFERS_KEPT then call("LREM", transfers, "-1", line) end
    end
  end
end

local function remembered(transfers, kind, id) -- luacheck: ignore 211 (grants alone are known by their ids)
  for _, line in ipairs(lines_of(transfers)) do
    if begins(line, kind, id) then return true end
  end
  return false
end

local function transfers_of(transfers) -- luacheck: ignore 211 (who only notes one does not look back)
  local found = {}
  for i, line in ipairs(lines_of(transfers)) do
    local kind, id, idempotency, other, amount, position =
      string.match(line, "^(%a+)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$")
    found[i] = {kind = kind, id = id, idempotency = idempotency, other = other, amount = amount, position = position}
  end
  return found
end
