--[[ worker-deleted: the worker is gone. Keys: worker. ]]
-- use lib/emit
apply["worker-deleted"] = function(keys)
  call("DEL", keys.worker)
end
