#!lua
--[[ assign: give one job of a waiting request to a worker, if it still waits.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] generation   hash    horde:generation:<generation id>
KEYS[5] content      hash    horde:content:<request id>        (ephemeral)
KEYS[6] lease        hash    horde:chat:lease:<generation id>  (ephemeral) of a streamed job
KEYS[7] due_lease    zset    horde:due:lease
KEYS[8] due_request  zset    horde:due:request

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
ARGV[11] content_ttl    seconds, the backstop for content, counted again
ARGV[12] most           generations a request may have had
ARGV[13] images         how the worker gets images: url, base64, or empty
ARGV[14] messages       how it gets messages that stand in the object store: messages_url, or empty
ARGV[15..] event        flat fields of assigned

RETURNS {"OK", position, assigned_ms, image_transport, stream, created_ms, user_id, shared_key, max_length, chat}: the last
        six of the request
REFUSES REBUILDING   a rebuild of state runs
        SPENT        the generation id was used before and holds nothing any more
        GONE         the request is gone
        NOT_WAITING  nothing of it waits
        HELD_OFF     this worker faulted it a moment ago
        NO_IMAGES    it has images, and the worker gets none
        LOST         it cannot be served any more: its content is gone, or it went round too often
EVENTS  assigned
]]
-- use lib/event
-- use lib/transport
-- use apply/assigned
local request, generation, content, lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local request_id, worker_id, owner_id, model = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local job_ttl, lease_cap, key, trusted = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local images, messages = ARGV[13], ARGV[14]
local bytes_per_token, grace, content_ttl, most = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], tonumber(ARGV[12])

if gated() then return {"REBUILDING"} end
local r = call("HMGET", request, "state", "waiting", "expires_ms", "holdoff_worker", "holdoff_ms", "stream",
  "max_length", "generations", "user", "created_ms", "shared_key", "chat", "objects")
local known = call("HMGET", generation, "state", "worker", "position", "assigned_ms", "image_transport")
-- A repeat of the same command gets the same job; an id that was given back or ended is never used again.
if known[1] == "pending" and known[2] == worker_id then
  return {"OK", known[3], known[4], known[5] or "", r[6] or "0", r[10] or known[4], r[9] or "0", r[11] or "", r[7] or "0", r[12] or "0"}
end
if known[1] then return {"SPENT"} end
if not r[1] then return {"GONE"} end
if r[1] ~= "open" or tonumber(r[2]) < 1 or tonumber(r[3]) <= now() then return {"NOT_WAITING"} end
if r[4] == worker_id and tonumber(r[5]) > now() then return {"HELD_OFF"} end
if call("EXISTS", content) == 0 or #r[8] >= most * 37 then return {"LOST"} end
local transport = transport_of(r[13], images, messages)
if not transport then return {"NO_IMAGES"} end

local position = emit({request = request, generation = generation, due_lease = KEYS[7], due_request = KEYS[8]},
  event_from(15, "waiting", text(tonumber(r[2]) - 1), "user_id", r[9], "image_transport", transport))
call("EXPIRE", content, content_ttl)
if r[6] == "1" then
  call("HSET", lease, "request", request_id, "worker", worker_id, "model", model, "owner", owner_id, "key", key,
    "max_bytes", text(tonumber(r[7]) * bytes_per_token), "fake", "0", "started", text(math.floor(now() / 1000)),
    "started_ms", text(now()), "job_ttl", job_ttl, "lease_cap", lease_cap, "trusted", trusted)
  call("EXPIRE", lease, text(tonumber(job_ttl) + grace))
end
return {"OK", position, text(now()), transport, r[6], r[10], r[9], r[11] or "", r[7], r[12]}
