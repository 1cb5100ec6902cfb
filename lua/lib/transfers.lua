--[[ note_transfer(transfers, kind, id, idempotency, other, amount, position): remember the newest movements between accounts.

One line each, `<kind>|<id>|<HMAC of the idempotency key>|<other account>|<amount>|<position>`, newest first: kind is
`out`, `in` or `grant`. As many are kept as any rule looks back to.
]]
-- use lib/call
local TRANSFERS_KEPT = 200

local function note_transfer(transfers, ...)
  call("LPUSH", transfers, table.concat({...}, "|"))
  call("LTRIM", transfers, "0", tostring(TRANSFERS_KEPT - 1))
end
