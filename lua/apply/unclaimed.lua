--[[ unclaimed: the operation key may be used anew, unless it names another request by now. Keys: claim, fences. ]]
-- use lib/emit
apply["unclaimed"] = function(keys, e)
  if call("HGET", keys.claim, "request") == e.request_id then call("DEL", keys.claim) end
  call("HSET", keys.fences, e.source, e.source_position)
end
