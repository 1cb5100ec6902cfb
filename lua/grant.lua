#!lua
--[[ grant: give an account kudos, or take some from it, down to its floor.

KEYS[1] events     stream  horde:events
KEYS[2] control    hash    horde:control
KEYS[3] account    hash    horde:account:<account id>
KEYS[4] clearing   hash    horde:clearing
KEYS[5] transfers  list    horde:transfers:<account id>
KEYS[6] due_recurring  zset  horde:due:recurring

ARGV[1] grant_id  of the command: a repeat changes nothing
ARGV[2] user_id
ARGV[3] amount    10^-4 kudos; less than 0: so many are taken
ARGV[4] most      10^-4 kudos that an account may be given, in all
ARGV[5..] event   flat fields of granted

RETURNS {"OK", kudos, repeated}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account (any more)
        TOO_MUCH    the account would have more than that, or the books would not hold it
EVENTS  granted floored
]]
-- use lib/event
-- use lib/floor
-- use lib/transfers
-- use apply/granted
local account, clearing, transfers = KEYS[3], KEYS[4], KEYS[5]
local grant_id, user_id, amount, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if gated() then return {"REBUILDING"} end
if not call("HGET", account, "name") then return {"NO_ACCOUNT"} end
if remembered(transfers, "grant", grant_id) then return {"OK", call("HGET", account, "kudos"), "1"} end
-- Redis counts to 2^63. What is refused there is appended by then: it would stop every fold of the log.
local a, c = call("HMGET", account, "kudos", "floor"), call("HMGET", clearing, "granted", "floor")
local left = tonumber(a[1]) + amount
local lifted = math.max(0, tonumber(a[2] or "0") - left)
local uncountable = math.abs(tonumber(c[1] or "0") - amount) > 2^62 or lifted - tonumber(c[2] or "0") > 2^62
if (amount > 0 and left > most) or uncountable then return {"TOO_MUCH"} end

emit({account = account, clearing = clearing, transfers = transfers, due_recurring = KEYS[6]}, event_from(5))
lift({account = account, clearing = clearing}, user_id)
return {"OK", call("HGET", account, "kudos"), "0"}
