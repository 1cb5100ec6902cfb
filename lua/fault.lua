#!lua flags=allow-oom
--[[ fault: the worker gives up the generation that it holds; the job is restarted in the same step.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] request     hash    horde:request:<request id>
KEYS[4] generation  hash    horde:generation:<generation id>
KEYS[5] lease       hash    horde:chat:lease:<generation id>  (ephemeral)
KEYS[6] stream      stream  horde:chat:stream:<request id>    (ephemeral)
KEYS[7] due_lease   zset    horde:due:lease

ARGV[1] generation_id
ARGV[2] limit       faults that a request survives
ARGV[3] stream_ttl  seconds
ARGV[4..] event     flat fields of faulted

RETURNS {"OK", position, exhausted, done}
REFUSES REBUILDING         a rebuild of state runs
        NOT_FOUND          no such generation
        ALREADY_SUBMITTED  a reply is stored
        ABORTED            it ended before, by a fault, a lapse or a cancel
EVENTS  faulted
]]
-- use lib/ended
-- use lib/fail
local request, generation, lease, stream, due_lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local generation_id, limit, stream_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if gated() then return {"REBUILDING"} end
local state = call("HGET", generation, "state")
if not state then return {"NOT_FOUND"} end
if state == "finished" then return {"ALREADY_SUBMITTED"} end
if state ~= "pending" then return {"ABORTED"} end

local keys = {request = request, generation = generation, due_lease = due_lease}
local position, exhausted, done = fail(keys, lease, 4, limit)
mark_ended(stream, lease, generation_id, stream_ttl)
return {"OK", position, exhausted, done}
