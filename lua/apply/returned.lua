--[[ returned: the job waits again. Keys: request, generation, due_lease.

A generation that was never assigned here becomes a tombstone: an `assign` that is still under way somewhere must find
its id spent, or the job would be assigned to nobody.
]]
-- use lib/emit
apply["returned"] = function(keys, e, position)
  if call("HGET", keys.generation, "state") == "pending" then
    call("HINCRBY", keys.request, "processing", -1)
    call("ZREM", keys.due_lease, e.generation_id)
  else
    local known = call("HGET", keys.request, "generations")
    if known ~= "" then known = known .. "," .. e.generation_id else known = e.generation_id end
    call("HSET", keys.request, "generations", known)
  end
  call("HSET", keys.generation, "request", e.request_id, "state", "returned", "position", position)
  call("HSET", keys.request, "waiting", e.waiting, "position", position)
  if e.done == "1" then call("HSET", keys.request, "state", "done") end
end
