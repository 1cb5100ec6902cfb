--[[ settled: the fence moves without an effect. Keys: fences. ]]
-- use lib/emit
apply["settled"] = function(keys, e)
  call("HSET", keys.fences, e.source, e.source_position)
end
