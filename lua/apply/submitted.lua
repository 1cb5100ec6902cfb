--[[ submitted: the request exists and waits. Keys: request, due_request. ]]
-- use lib/emit
-- use lib/objects
apply["submitted"] = function(keys, e, position, ms)
  local expires = ms + tonumber(e.ttl) * 1000
  call("HSET", keys.request, "state", "open", "user", e.user_id, "chat", e.chat, "jobs", e.jobs, "waiting", e.jobs,
    "processing", "0", "finished", "0", "faults", "0", "cancelled", "0", "faulted", "0", "stream", e.stream,
    "max_length", e.max_length, "ttl", e.ttl, "created_ms", text(ms), "expires_ms", text(expires),
    "prompt_tokens", e.prompt_tokens or "0", "targeted", e.targeted or "0", "shared_key", e.shared_key or "",
    "deadline_ms", e.deadline_ms or "0", "operation_key", e.operation_key or "", "generations", "",
    "position", position)
  keep_objects(keys.request, objects_of(e))
  call("ZADD", keys.due_request, text(expires), e.request_id)
end
