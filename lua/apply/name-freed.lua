--[[ name-freed: the name leads nowhere. Keys: worker_name, fences. ]]
-- use lib/emit
apply["name-freed"] = function(keys, e)
  call("DEL", keys.worker_name)
  call("HSET", keys.fences, e.source, e.source_position)
end
