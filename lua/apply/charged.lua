--[[ charged: the payer's side of some generations. Keys: account, clearing, fences, and shared_key where it names one.

What an open admission holds is used up first: it is not free to be held again.
]]
-- use lib/emit
-- use lib/ids
-- use lib/ledger
-- use lib/waiting
apply["charged"] = function(keys, e, position)
  local amounts, total = ids_of(e.amounts), 0
  local budget = keys.shared_key and call("EXISTS", keys.shared_key) == 1
  for i, request_id in ipairs(ids_of(e.requests)) do
    local amount, field = tonumber(amounts[i]), "admission:" .. request_id
    local waiting, deadline_ms, operation_key, scopes, held, refundable, shared_key, objects =
      admission_parts(call("HGET", keys.account, field))
    local used = math.min(tonumber(held or "0"), amount)
    if used > 0 then
      call("HSET", keys.account, field,
        admission(waiting, deadline_ms, operation_key, scopes, text(held - used), refundable, shared_key, objects))
      hold(keys.account, -used, shared_key)
    end
    -- One by one: the charge that empties a budget is recorded whole, the next one not at all.
    if budget then use_key(keys.shared_key, amount) end
    total = total + amount
  end
  local burnt = #amounts * tonumber(e.burn)
  post(keys, "generation", burnt - total)
  post(keys, "burn", -burnt)
  call("HSET", keys.account, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
