#!lua
--[[ change_account: change what an account is called, or may do.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] account  hash    horde:account:<account id>

ARGV[1..] event  flat fields of account-changed

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account, or it is deleted
EVENTS  account-changed
]]
-- use lib/event
-- use apply/account-changed
local account = KEYS[3]

if gated() then return {"REBUILDING"} end
if call("HEXISTS", account, "name") == 0 then return {"NO_ACCOUNT"} end
return {"OK", emit({account = account}, event_from(1))}
