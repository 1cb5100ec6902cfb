#!lua
--[[ decoy: hand a paused worker a job that is none. Its request goes on waiting; nothing is counted, and no event tells.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] request  hash    horde:request:<request id>
KEYS[4] decoy    hash    horde:decoy:<generation id>       (ephemeral)
KEYS[5] tricked  hash    horde:tricked:<request id>        (ephemeral) worker → its decoy, of those that had one
KEYS[6] lease    hash    horde:chat:lease:<generation id>  (ephemeral) of a streamed job

ARGV[1] request_id
ARGV[2] worker_id
ARGV[3] owner_id
ARGV[4] model
ARGV[5] job_ttl         seconds
ARGV[6] lease_cap       seconds
ARGV[7] key             SHA-256 of the owner's stored key hash: who may post progress
ARGV[8] trusted         1 or 0
ARGV[9] bytes_per_token of progress
ARGV[10] grace          seconds that the lease hash outlives the job's ttl
ARGV[11] kept           seconds that the decoy, and who had one, are remembered
ARGV[12] generation_id  of the decoy
ARGV[13] most           decoys of one request
ARGV[14] validated      1 or 0: whether the worker's backend is
ARGV[15] images         how the worker gets images: url, base64, or empty
ARGV[16] messages       how it gets messages that stand in the object store: messages_url, or empty

RETURNS {"OK", stream, image_transport}
REFUSES REBUILDING   a rebuild of state runs
        GONE         the request is gone
        NOT_WAITING  nothing of it waits
        NO_IMAGES    it has images, and the worker gets none
        TRICKED      the worker had one of this request, or too many others had
EVENTS  (none)
]]
-- use lib/now
-- use lib/transport
local request, decoy, tricked, lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local request_id, worker_id, owner_id, model, job_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease_cap, key, trusted, bytes_per_token = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local grace, kept, generation_id, most = tonumber(ARGV[10]), ARGV[11], ARGV[12], tonumber(ARGV[13])
local validated, images, messages = ARGV[14], ARGV[15], ARGV[16]

if gated() then return {"REBUILDING"} end
local r = call("HMGET", request, "state", "waiting", "expires_ms", "stream", "max_length", "user", "chat",
  "prompt_tokens", "targeted", "objects")
if not r[1] then return {"GONE"} end
if r[1] ~= "open" or tonumber(r[2]) < 1 or tonumber(r[3]) <= now() then return {"NOT_WAITING"} end
if call("HEXISTS", tricked, worker_id) == 1 or call("HLEN", tricked) >= most then return {"TRICKED"} end
local transport = transport_of(r[10], images, messages)
if not transport then return {"NO_IMAGES"} end

call("HSET", tricked, worker_id, generation_id)
call("EXPIRE", tricked, kept)
call("HSET", decoy, "request", request_id, "worker", worker_id, "model", model, "owner", owner_id, "state", "pending",
  "job_ttl", job_ttl, "payer", r[6], "chat", r[7], "max_length", r[5], "prompt_tokens", r[8] or "0",
  "targeted", r[9] or "0", "validated", validated, "trusted", trusted, "stream", r[4], "assigned_ms", text(now()))
call("EXPIRE", decoy, kept)
if r[4] == "1" then
  call("HSET", lease, "request", request_id, "worker", worker_id, "model", model, "owner", owner_id, "key", key,
    "max_bytes", text(tonumber(r[5]) * bytes_per_token), "fake", "1", "started", text(math.floor(now() / 1000)),
    "started_ms", text(now()), "job_ttl", job_ttl, "lease_cap", lease_cap, "trusted", trusted)
  call("EXPIRE", lease, text(tonumber(job_ttl) + grace))
end
return {"OK", r[4], transport}
