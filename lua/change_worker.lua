#!lua
--[[ change_worker: change what a worker may do, or what is said of it.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] worker   hash    horde:worker:<worker id>

ARGV[1..] event  flat fields of worker-changed

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        NOT_FOUND   there is no such worker
EVENTS  worker-changed
]]
-- use lib/event
-- use apply/worker-changed
local worker = KEYS[3]

if gated() then return {"REBUILDING"} end
if call("EXISTS", worker) == 0 then return {"NOT_FOUND"} end
return {"OK", emit({worker = worker}, event_from(1))}
