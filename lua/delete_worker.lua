#!lua
--[[ delete_worker: forget a worker. Its name is freed by the settler.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] worker   hash    horde:worker:<worker id>

ARGV[1] name
ARGV[2..] event  flat fields of worker-deleted

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        NOT_FOUND   there is no worker of that id and name
EVENTS  worker-deleted
]]
-- use lib/event
-- use apply/worker-deleted
local worker, name = KEYS[3], ARGV[1]

if gated() then return {"REBUILDING"} end
if call("HGET", worker, "name") ~= name then return {"NOT_FOUND"} end
return {"OK", emit({worker = worker}, event_from(2))}
