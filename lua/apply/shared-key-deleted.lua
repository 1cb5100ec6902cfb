--[[ shared-key-deleted: it is nobody's. Keys: shared_key, of_account. ]]
-- use lib/emit
apply["shared-key-deleted"] = function(keys, e)
  call("DEL", keys.shared_key)
  call("SREM", keys.of_account, e.shared_key)
end
