#!lua flags=allow-oom
--[[ lapse: end a generation whose lease ran out; the job is restarted in the same step.

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
REFUSES REBUILDING  a rebuild of state runs
        ENDED       the generation ended before, or is gone
        NOT_DUE     its deadline is still ahead
EVENTS  faulted
]]
-- use lib/ended
-- use lib/fail
local request, generation, lease, stream, due_lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local generation_id, limit, stream_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if gated() then return {"REBUILDING"} end
local g = call("HMGET", generation, "state", "deadline_ms")
if g[1] ~= "pending" then return {"ENDED"} end
-- The exact deadline of a streamed job stands in its lease hash; a lost hash can only lengthen a lease.
local deadline = tonumber(g[2])
local l = call("HMGET", lease, "started_ms", "job_ttl")
if l[1] then deadline = tonumber(l[1]) + tonumber(l[2]) * 1000 end
if now() <= deadline then return {"NOT_DUE"} end

local keys = {request = request, generation = generation, due_lease = due_lease}
local position, exhausted, done = fail(keys, lease, 4, limit)
mark_ended(stream, lease, generation_id, stream_ttl)
return {"OK", position, exhausted, done}
