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
ARGV[3..] event   flat fields of granted

RETURNS {"OK", kudos, repeated}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account (any more)
EVENTS  granted floored
]]
-- use lib/event
-- use lib/floor
-- use lib/transfers
-- use apply/granted
local account, clearing, transfers = KEYS[3], KEYS[4], KEYS[5]
local grant_id, user_id = ARGV[1], ARGV[2]

if gated() then return {"REBUILDING"} end
if not call("HGET", account, "name") then return {"NO_ACCOUNT"} end
if remembered(transfers, "grant", grant_id) then return {"OK", call("HGET", account, "kudos"), "1"} end

emit({account = account, clearing = clearing, transfers = transfers, due_recurring = KEYS[6]}, event_from(3))
lift({account = account, clearing = clearing}, user_id)
return {"OK", call("HGET", account, "kudos"), "0"}
