--[[ account-rekeyed: the former API key is nobody's. Keys: account, api_key, former. ]]
-- use lib/emit
apply["account-rekeyed"] = function(keys, e, position)
  call("HSET", keys.account, "key", e.key, "position", position)
  call("DEL", keys.former)
  call("SET", keys.api_key, e.user_id)
end
