--[[ submitted-reply: the generation is finished. Keys: request, generation, due_lease, due_request. ]]
-- use lib/emit
apply["submitted-reply"] = function(keys, e, position, ms)
  call("HSET", keys.generation, "state", "finished", "position", position)
  call("ZREM", keys.due_lease, e.generation_id)
  local r = call("HMGET", keys.request, "processing", "ttl", "state")
  local expires = text(ms + r[2] * 1000)
  call("HSET", keys.request, "finished", e.finished, "processing", text(r[1] - 1), "expires_ms", expires,
    "state", e.done == "1" and "done" or r[3], "position", position)
  call("ZADD", keys.due_request, expires, e.request_id)
end
