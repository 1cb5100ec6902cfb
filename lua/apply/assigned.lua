--[[ assigned: a worker holds one job. Keys: request, generation, due_lease, due_request. ]]
-- use lib/emit
-- use apply/touch
apply["assigned"] = function(keys, e, position, ms)
  local deadline = ms + tonumber(e.job_ttl) * 1000
  call("HSET", keys.generation, "request", e.request_id, "worker", e.worker_id, "owner", e.owner_id, "model", e.model,
    "state", "pending", "job_ttl", e.job_ttl, "lease_cap", e.lease_cap, "assigned_ms", text(ms),
    "deadline_ms", text(deadline), "position", position)
  call("ZADD", keys.due_lease, text(deadline), e.generation_id)
  local known = call("HGET", keys.request, "generations")
  if known and known ~= "" then known = known .. "," .. e.generation_id else known = e.generation_id end
  call("HSET", keys.request, "generations", known, "waiting", e.waiting)
  call("HINCRBY", keys.request, "processing", 1)
  touch(keys, e.request_id, position, ms)
end
