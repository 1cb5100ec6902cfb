--[[ submitted-reply: the generation is finished. Keys: request, generation, due_lease, due_request. ]]
-- use lib/emit
-- use apply/touch
apply["submitted-reply"] = function(keys, e, position, ms)
  call("HSET", keys.generation, "state", "finished", "position", position)
  call("ZREM", keys.due_lease, e.generation_id)
  call("HSET", keys.request, "finished", e.finished)
  call("HINCRBY", keys.request, "processing", -1)
  if e.done == "1" then call("HSET", keys.request, "state", "done") end
  touch(keys, e.request_id, position, ms)
end
