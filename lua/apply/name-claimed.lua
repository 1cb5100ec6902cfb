--[[ name-claimed: the name leads to the worker. Keys: worker_name. ]]
-- use lib/emit
apply["name-claimed"] = function(keys, e)
  call("SET", keys.worker_name, e.worker_id)
end
