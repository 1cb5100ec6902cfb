--[[ worker-nonconformant: a job ended whose reply broke the contract of its request. Keys: worker, fences. ]]
-- use lib/emit
apply["worker-nonconformant"] = function(keys, e, position)
  call("HINCRBY", keys.worker, "nonconformant", 1)
  call("HSET", keys.worker, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
