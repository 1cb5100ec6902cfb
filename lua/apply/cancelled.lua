--[[ cancelled: no job of the request is handed out any more. Keys: request, settled (list), due_lease. ]]
-- use lib/emit
-- use lib/ids
apply["cancelled"] = function(keys, e, position)
  local settled = ids_of(e.settled)
  for i, generation_id in ipairs(settled) do
    call("HSET", keys.settled[i], "state", "faulted", "position", position)
    call("ZREM", keys.due_lease, generation_id)
  end
  call("HINCRBY", keys.request, "processing", -#settled)
  call("HSET", keys.request, "cancelled", "1", "waiting", "0", "position", position)
  if e.done == "1" then call("HSET", keys.request, "state", "done") end
end
