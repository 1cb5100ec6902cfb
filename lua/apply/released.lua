--[[ released: the admission is closed. Keys: account, clearing, due_admission, fences, and shared_key where a refund names one.

The tax of a request that never came is given back, what of it the floor did not lift.
]]
-- use lib/emit
-- use lib/ledger
-- use lib/waiting
apply["released"] = function(keys, e, position)
  local field = "admission:" .. e.request_id
  local waiting, _, _, scopes, held, _, shared_key = admission_parts(call("HGET", keys.account, field))
  if waiting then
    call("HDEL", keys.account, field)
    count_waiting(keys.account, -waiting, scopes)
    hold(keys.account, -held, shared_key)
  end
  local refunded = tonumber(e.refunded or "0")
  post(keys, "tax", refunded)
  if keys.shared_key and call("EXISTS", keys.shared_key) == 1 then use_key(keys.shared_key, -refunded) end
  call("HSET", keys.account, "position", position)
  call("ZREM", keys.due_admission, e.user_id .. ":" .. e.request_id)
  call("HSET", keys.fences, e.source, e.source_position)
end
