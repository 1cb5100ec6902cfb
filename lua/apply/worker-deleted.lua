--[[ worker-deleted: the worker and its claim of the name are gone. Keys: worker, worker_name. ]]
-- use lib/emit
apply["worker-deleted"] = function(keys, e)
  call("DEL", keys.worker)
  if call("GET", keys.worker_name) == e.worker_id then call("DEL", keys.worker_name) end
end
