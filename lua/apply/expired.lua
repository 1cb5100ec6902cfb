--[[ expired: nothing of the request is left. Keys: request, generations (list), due_lease, due_request. ]]
-- use lib/emit
-- use lib/ids
apply["expired"] = function(keys, e)
  for i, generation_id in ipairs(ids_of(e.generations)) do
    call("DEL", keys.generations[i])
    call("ZREM", keys.due_lease, generation_id)
  end
  call("DEL", keys.request)
  call("ZREM", keys.due_request, e.request_id)
end
