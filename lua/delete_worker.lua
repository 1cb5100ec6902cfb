#!lua
--[[ delete_worker: forget a worker and free its name.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] worker       hash    horde:worker:<worker id>
KEYS[4] worker_name  string  horde:worker_name:<digest of the name>

ARGV[1] name
ARGV[2..] event  flat fields of worker-deleted

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        NOT_FOUND   there is no worker of that id and name
EVENTS  worker-deleted
]]
-- use lib/event
-- use apply/worker-deleted
local worker, worker_name, name = KEYS[3], KEYS[4], ARGV[1]

if gated() then return {"REBUILDING"} end
if call("HGET", worker, "name") ~= name then return {"NOT_FOUND"} end
return {"OK", emit({worker = worker, worker_name = worker_name}, event_from(2))}
