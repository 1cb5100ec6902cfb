#!lua flags=allow-oom
--[[ end_decoy: a paused worker is done with a job that was none.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] decoy    hash    horde:decoy:<generation id>       (ephemeral)
KEYS[4] lease    hash    horde:chat:lease:<generation id>  (ephemeral)

ARGV[1] state  finished or faulted: what a real job would be in now

RETURNS {"OK"}
REFUSES REBUILDING         a rebuild of state runs
        NOT_FOUND          it is forgotten, as its request is
        ALREADY_SUBMITTED  a reply came before
        ABORTED            it was given up before, its lease ran out, or its request was cancelled
EVENTS  (none)
]]
-- use lib/now
local decoy, lease, state = KEYS[3], KEYS[4], ARGV[1]

if gated() then return {"REBUILDING"} end
local before = call("HGET", decoy, "state")
if not before then return {"NOT_FOUND"} end
if before == "finished" then return {"ALREADY_SUBMITTED"} end
if before ~= "pending" then return {"ABORTED"} end
local l, d = call("HMGET", lease, "started_ms", "job_ttl"), call("HMGET", decoy, "assigned_ms", "job_ttl")
if now() > tonumber(l[1] or d[1]) + tonumber(l[2] or d[2]) * 1000 then return {"ABORTED"} end

call("HSET", decoy, "state", state)
call("DEL", lease)
return {"OK"}
