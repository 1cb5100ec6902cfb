--[[ worker-aborted: one more dropped job. Keys: worker, fences. ]]
-- use lib/emit
apply["worker-aborted"] = function(keys, e, position)
  call("HINCRBY", keys.worker, "aborts", 1)
  call("HSET", keys.worker, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
