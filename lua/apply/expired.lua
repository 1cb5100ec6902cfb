--[[ expired: nothing of the request is left. Keys: request, generations (list), due_lease, due_request.

Until its admission's deadline a late repeat of the submit may come: as long, a tombstone keeps the id from being used anew.
]]
-- use lib/emit
-- use lib/ids
-- use lib/tombstone
apply["expired"] = function(keys, e, position, ms)
  for i, generation_id in ipairs(ids_of(e.generations)) do
    call("DEL", keys.generations[i])
    call("ZREM", keys.due_lease, generation_id)
  end
  local deadline = tonumber(call("HGET", keys.request, "deadline_ms") or "0")
  call("DEL", keys.request)
  if ms <= deadline then
    bury(keys, e, text(deadline + 1), position)
  else
    call("ZREM", keys.due_request, e.request_id)
  end
end
