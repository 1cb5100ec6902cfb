--[[ expired: nothing of the request is left. Keys: request, generations (list), due_lease, due_request.

Until its admission's deadline a late repeat of the submit may come: as long, a tombstone keeps the id from being used anew,
and names the objects that such a repeat may have stored; they are deleted once more when it ends.
]]
-- use lib/emit
-- use lib/ids
-- use lib/tombstone
-- How long after its deadline an upload may still land: one that began before, in a thread that nobody can stop.
local STRAGGLERS_MS = 30000

apply["expired"] = function(keys, e, position, ms)
  for i, generation_id in ipairs(ids_of(e.generations)) do
    call("DEL", keys.generations[i])
    call("ZREM", keys.due_lease, generation_id)
  end
  local r = call("HMGET", keys.request, "deadline_ms", "objects")
  local deadline, objects = tonumber(r[1] or "0"), r[2] or ""
  if objects ~= "" then deadline = deadline + STRAGGLERS_MS end
  call("DEL", keys.request)
  if ms <= deadline then
    bury(keys, e, text(deadline + 1), objects, position)
  else
    call("ZREM", keys.due_request, e.request_id)
  end
end
