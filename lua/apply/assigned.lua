--[[ assigned: a worker holds one job. Keys: request, generation, due_lease, due_request. ]]
-- use lib/emit
apply["assigned"] = function(keys, e, position, ms)
  local deadline = ms + tonumber(e.job_ttl) * 1000
  local r = call("HMGET", keys.request, "generations", "processing", "ttl", "user", "chat", "max_length",
    "prompt_tokens", "targeted", "shared_key")
  -- What the worker's submit asks of its request stands beside it, so that one read finds all.
  call("HSET", keys.generation, "request", e.request_id, "worker", e.worker_id, "owner", e.owner_id, "model", e.model,
    "payer", r[4], "chat", r[5], "state", "pending", "job_ttl", e.job_ttl, "lease_cap", e.lease_cap,
    "max_length", r[6], "prompt_tokens", r[7] or "0", "targeted", r[8] or "0", "shared_key", r[9] or "",
    "validated", e.validated or "0", "trusted", e.trusted or "0", "over_capacity", e.over_capacity or "0",
    "assigned_ms", text(ms), "deadline_ms", text(deadline), "position", position)
  if (e.image_transport or "") ~= "" then call("HSET", keys.generation, "image_transport", e.image_transport) end
  call("ZADD", keys.due_lease, text(deadline), e.generation_id)
  local known = r[1] == "" and e.generation_id or r[1] .. "," .. e.generation_id
  local expires = text(ms + r[3] * 1000)
  call("HSET", keys.request, "generations", known, "waiting", e.waiting, "processing", text(r[2] + 1),
    "expires_ms", expires, "position", position)
  call("ZADD", keys.due_request, expires, e.request_id)
end
