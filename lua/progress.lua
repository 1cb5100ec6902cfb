#!lua
--[[ progress: append what a worker generated since its last post, and renew its lease.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] lease       hash    horde:chat:lease:<generation id>   (ephemeral)
KEYS[4] stream      stream  horde:chat:stream:<request id>     (ephemeral)
KEYS[5] generation  hash    horde:generation:<generation id>
KEYS[6] due_lease   zset    horde:due:lease

ARGV[1] generation_id
ARGV[2] key          SHA-256 of the caller's stored key hash
ARGV[3] seq
ARGV[4] content
ARGV[5] reasoning
ARGV[6] characters   of the content
ARGV[7] most         entries of a generation
ARGV[8] stream_ttl   seconds
ARGV[9] stream_most  entries of the stream, about
ARGV[10] base        seconds of a lease from now
ARGV[11] grace       seconds that the lease hash outlives the lease
ARGV[12] slack       seconds that the logged deadline runs ahead of the exact one
ARGV[13..] event     flat fields of progressed

RETURNS {"OK", accepted_seq, cancelled, renewal, trusted}  renewal: granted, at_cap or none
REFUSES REBUILDING         a rebuild of state runs
        NO_LEASE           nothing to post to
        WRONG_CREDENTIALS  the key is not the worker's owner's
        OUT_OF_SEQUENCE    not the next seq, or the last one with other content; the expected one comes with it
        CAP_REACHED        too many entries or bytes
EVENTS  progressed
]]
-- use lib/event
-- use apply/progressed
local lease, stream, generation, due_lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local generation_id, key, seq, content, reasoning = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local characters, most, stream_ttl, stream_most = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local base, grace, slack = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])

if gated() then return {"REBUILDING"} end
local l = call("HMGET", lease, "key", "seq", "content", "reasoning", "bytes", "max_bytes", "cancelled", "started_ms",
  "job_ttl", "lease_cap", "worker", "model", "characters", "trusted", "fake")
if not l[1] then return {"NO_LEASE"} end
if l[1] ~= key then return {"WRONG_CREDENTIALS"} end
local fake, started, job_ttl, cap = l[15] == "1", tonumber(l[8]), tonumber(l[9]), tonumber(l[10])
-- Nobody sweeps the lease of a decoy (lua/decoy.lua): it ends as a real one would, by its time alone.
if fake and now() > started + job_ttl * 1000 then return {"NO_LEASE"} end
local last, cancelled = tonumber(l[2] or "0"), l[7] or "0"
if seq == last and last > 0 and content == l[3] and reasoning == l[4] then
  return {"OK", text(last), cancelled, "none", l[14] or "0"}
end
if seq ~= last + 1 then return {"OUT_OF_SEQUENCE", text(last + 1)} end
local bytes = tonumber(l[5] or "0") + #content + #reasoning
if seq > most or bytes > tonumber(l[6]) then return {"CAP_REACHED"} end

local g = call("HMGET", generation, "state", "deadline_ms")
local renewal = "none"
if (fake or g[1] == "pending") and cancelled ~= "1" and now() <= started + job_ttl * 1000 then
  local longer = math.min(cap, math.ceil((now() - started) / 1000 + base))
  if longer > job_ttl then
    renewal, job_ttl = "granted", longer
    local exact = started + job_ttl * 1000
    if not fake and exact > tonumber(g[2]) then
      local logged = math.min(started + cap * 1000, exact + slack * 1000)
      emit({generation = generation, due_lease = due_lease},
        event_from(13, "deadline_ms", text(logged), "job_ttl", text(job_ttl)))
    end
  elseif job_ttl >= cap then
    renewal = "at_cap"
  end
end
call("HSET", lease, "seq", text(seq), "content", content, "reasoning", reasoning, "bytes", text(bytes),
  "characters", text(tonumber(l[13] or "0") + characters), "job_ttl", text(job_ttl))
if renewal == "granted" then
  call("PEXPIRE", lease, text(started + (job_ttl + grace) * 1000 - now()))
end
-- What a paused worker generates for its decoy is taken and dropped.
if fake then return {"OK", text(seq), cancelled, "none", "0"} end
local entry = {"gen", generation_id, "seq", text(seq), "content", content}
if reasoning ~= "" then entry[#entry + 1] = "reasoning_content"; entry[#entry + 1] = reasoning end
entry[#entry + 1] = "worker"; entry[#entry + 1] = l[11]
if l[12] then entry[#entry + 1] = "model"; entry[#entry + 1] = l[12] end
call("XADD", stream, "MAXLEN", "~", stream_most, "*", unpack(entry))
call("EXPIRE", stream, stream_ttl)
return {"OK", text(seq), cancelled, renewal, l[14] or "0"}
