--[[ fail(keys, lease, first, limit): what a fault does to its request, worked out once for a worker's fault and a lapse.

Appends `faulted` with the fields that only hot state knows; returns position, exhausted, done.
A cancelled request is not restarted; one with more faults than the limit is faulted itself. The worker's own reason
counts unless a reply of the same generation was refused: that says more.
How long its lease was in the end stands in the lease hash; the log was told of it from time to time only.
]]
-- use lib/event
-- use lib/emit
-- use apply/faulted
local function fail(keys, lease, first, limit)
  local r = call("HMGET", keys.request, "waiting", "processing", "faults", "cancelled", "state", "user", "finished",
    "fault_rc", "fault_code")
  local g = call("HMGET", keys.generation, "worker", "refusal_rc", "job_ttl")
  local worker, refusal_rc, reason = g[1], g[2] or "", fields_of(event_from(first)).reason
  local fault_rc, fault_code = r[8] or "", r[9] or ""
  if reason ~= "" and refusal_rc == "" then fault_rc, fault_code = "ChatWorkerFault", reason end
  local waiting, processing, faults = tonumber(r[1]), tonumber(r[2]) - 1, tonumber(r[3]) + 1
  local open = r[5] == "open"
  local exhausted = open and r[4] ~= "1" and faults > limit
  local restarted = open and r[4] ~= "1" and not exhausted
  if restarted then waiting = waiting + 1 end
  if exhausted then waiting = 0 end
  local done = exhausted or (open and waiting == 0 and processing == 0)
  local position = emit(keys, event_from(first,
    "worker_id", worker, "user_id", r[6], "restarted", restarted and "1" or "0", "waiting", text(waiting),
    "exhausted", exhausted and "1" or "0", "finished", r[7], "done", done and "1" or "0",
    "refusal_rc", refusal_rc, "fault_rc", fault_rc, "fault_code", fault_code,
    "job_ttl", call("HGET", lease, "job_ttl") or g[3]))
  return position, exhausted and "1" or "0", done and "1" or "0"
end
