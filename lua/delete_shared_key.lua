#!lua
--[[ delete_shared_key: nothing is spent with a shared key any more. Requests that are under way go on.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] shared_key  hash    horde:shared_key:<id>
KEYS[4] of_account  set     horde:shared_keys:<account id>

ARGV[1] user_id  its owner
ARGV[2..] event  flat fields of shared-key-deleted

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
        NO_KEY      the account has no such key
EVENTS  shared-key-deleted
]]
-- use lib/event
-- use apply/shared-key-deleted
local shared_key, of_account, user_id = KEYS[3], KEYS[4], ARGV[1]

if gated() then return {"REBUILDING"} end
if call("HGET", shared_key, "user") ~= user_id then return {"NO_KEY"} end
emit({shared_key = shared_key, of_account = of_account}, event_from(2))
return {"OK"}
