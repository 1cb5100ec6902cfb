#!lua
--[[ change_shared_key: give a shared key another budget, name, end or cap.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] shared_key  hash    horde:shared_key:<id>

ARGV[1] user_id  its owner
ARGV[2..] event  flat fields of shared-key-changed

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
        NO_KEY      the account has no such key
EVENTS  shared-key-changed
]]
-- use lib/event
-- use apply/shared-key-changed
local shared_key, user_id = KEYS[3], ARGV[1]

if gated() then return {"REBUILDING"} end
if call("HGET", shared_key, "user") ~= user_id then return {"NO_KEY"} end
emit({shared_key = shared_key}, event_from(2))
return {"OK"}
