--[[ What accounts remember of the newest movements between them, and of grants.

One line each, `<kind>|<id>|<HMAC of the idempotency key>|<other>|<amount>|<position>`, newest first: kind is `out`, `in` or
`grant`; other is the account on the other side, or the shared key of it that the kudos are for.

note_transfer(transfers, kind, id, idempotency, other, amount, position): remember one.
transfers_of(transfers): all of them, newest first, each as a table of its parts by name.
]]
-- use lib/call
-- Of each kind: nobody else's transfers push out the ones that a repeat is known by.
local TRANSFERS_KEPT = 200

local function transfer_parts(line)
  local kind, id, idempotency, other, amount, position =
    string.match(line, "^(%a+)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$")
  return {kind = kind, id = id, idempotency = idempotency, other = other, amount = amount, position = position}
end

local function transfers_of(transfers) -- luacheck: ignore 211 (who only notes one does not look back)
  local found = {}
  for i, line in ipairs(call("LRANGE", transfers, "0", "-1")) do found[i] = transfer_parts(line) end
  return found
end

local function note_transfer(transfers, kind, ...) -- luacheck: ignore 211 (who only looks back notes none)
  call("LPUSH", transfers, table.concat({kind, ...}, "|"))
  local alike = 0
  for _, line in ipairs(call("LRANGE", transfers, "0", "-1")) do
    if string.match(line, "^%a+") == kind then
      alike = alike + 1
      if alike > TRANSFERS_KEPT then call("LREM", transfers, "-1", line) end
    end
  end
end
