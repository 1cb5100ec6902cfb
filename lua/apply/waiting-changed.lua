--[[ waiting-changed: so many jobs of these requests wait now. Keys: account, fences.

An admission that is closed stays so. The requests are as many as the settler carries at once, so few commands do for all.
]]
-- use lib/emit
-- use lib/waiting
apply["waiting-changed"] = function(keys, e, position)
  local counts, changed, total = ids_of(e.waiting), {}, 0
  local known, fields = admissions(keys.account, e.requests)
  for i, stored in ipairs(known) do
    local before, deadline_ms, operation_key, scopes, held, refundable, shared_key, objects = admission_parts(stored)
    if before then
      changed[#changed + 1] = fields[i]
      changed[#changed + 1] =
        admission(counts[i], deadline_ms, operation_key, scopes, held, refundable, shared_key, objects)
      total = total + counts[i] - before
      count_scopes(keys.account, counts[i] - before, scopes)
    end
  end
  call("HSET", keys.account, "position", position, unpack(changed))
  count_waiting(keys.account, total, "")
  call("HSET", keys.fences, e.source, e.source_position)
end
