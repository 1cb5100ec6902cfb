#!lua flags=allow-oom
--[[ expire: end a request, and forget it and its content.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] content      hash    horde:content:<request id>        (ephemeral)
KEYS[5] due_lease    zset    horde:due:lease
KEYS[6] due_request  zset    horde:due:request
KEYS[7] delete_retry  set       horde:chat:image_delete_retry
KEYS[8..] generations  hash, hash  horde:generation:<id>, horde:chat:lease:<id> of each generation, in turn; then
                         horde:decoy:<id> and lease of each decoy, likewise

ARGV[1] generations  the ids that the caller read, comma-joined
ARGV[2] most         generations that wear a request out
ARGV[3] reason_ttl   seconds that the fault reason stays for the completion signal
ARGV[4] most_deletes objects that may wait for their deletion
ARGV[5] request_id
ARGV[6..] event      flat fields of expired

RETURNS {"OK", position, done, dropped}  done: 1 where the request was not done before; dropped: objects for whose deletion
        there was no room, comma-joined
REFUSES REBUILDING  a rebuild of state runs
        NOT_FOUND   no such request
        NOT_DUE     its time is still ahead, and it can still be served
        STALE       it has other generations than the caller read
EVENTS  expired
]]
-- use lib/event
-- use lib/ids
-- use lib/objects
-- use apply/expired
local request, content, due_lease, due_request = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local delete_retry = KEYS[7]
local generations, most, reason_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local most_deletes, request_id = tonumber(ARGV[4]), ARGV[5]

if gated() then return {"REBUILDING"} end
local r = call("HMGET", request, "state", "expires_ms", "generations", "user", "finished", "waiting",
  "operation_key", "fault_rc", "fault_code", "objects")
if not r[1] then return {"NOT_FOUND"} end
local cause = "ttl"
if now() < tonumber(r[2]) then
  local waits = r[1] == "open" and tonumber(r[6]) > 0
  if not waits or (call("EXISTS", content) == 1 and #r[3] < most * 37) then return {"NOT_DUE"} end
  cause = "content-lost"
end
if r[3] ~= generations then return {"STALE"} end

local hashes, jobs = {}, #ids_of(generations)
for i = 1, jobs do hashes[i] = KEYS[6 + 2 * i] end
local done = r[1] == "open" and "1" or "0"
local position = emit({request = request, generations = hashes, due_lease = due_lease, due_request = due_request},
  event_from(6, "user_id", r[4], "cause", cause, "finished", r[5], "done", done, "operation_key", r[7] or "",
    "fault_rc", r[8] or "", "fault_code", r[9] or ""))
local reason = call("HGET", content, "fault_reason")
call("DEL", content)
if done == "1" and reason then
  call("HSET", content, "fault_reason", reason)
  call("EXPIRE", content, reason_ttl)
end
for i = 9, #KEYS, 2 do call("DEL", KEYS[i]) end  -- leases
for i = 8 + 2 * jobs, #KEYS, 2 do call("DEL", KEYS[i]) end  -- decoys: no event ends them
return {"OK", position, done, queue_objects(delete_retry, request_id, r[10], most_deletes)}
