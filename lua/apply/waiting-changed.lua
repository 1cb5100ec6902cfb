--[[ waiting-changed: so many jobs of these requests wait now. Keys: account, fences. An admission that is closed stays so. ]]
-- use lib/emit
-- use lib/waiting
apply["waiting-changed"] = function(keys, e, position)
  local counts = ids_of(e.waiting)
  for i, request_id in ipairs(ids_of(e.requests)) do
    local field = "admission:" .. request_id
    local before, deadline_ms, operation_key, scopes = admission_parts(call("HGET", keys.account, field))
    if before then
      call("HSET", keys.account, field, admission(counts[i], deadline_ms, operation_key, scopes))
      count_waiting(keys.account, counts[i] - before, scopes)
    end
  end
  call("HSET", keys.account, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
