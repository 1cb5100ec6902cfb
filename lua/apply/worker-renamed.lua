--[[ worker-renamed: what the worker is called. Keys: worker, fences. ]]
-- use lib/emit
apply["worker-renamed"] = function(keys, e, position)
  -- One that is gone has nothing to be called: the event frees the name that was claimed for it.
  if e.former ~= e.name then call("HSET", keys.worker, "name", e.name, "position", position) end
  call("HSET", keys.fences, e.source, e.source_position)
end
