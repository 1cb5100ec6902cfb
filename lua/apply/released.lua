--[[ released: the admission is closed. Keys: account, due_admission, fences. ]]
-- use lib/emit
-- use lib/waiting
apply["released"] = function(keys, e, position)
  local field = "admission:" .. e.request_id
  local waiting, _, _, scopes = admission_parts(call("HGET", keys.account, field))
  if waiting then
    call("HDEL", keys.account, field)
    count_waiting(keys.account, -waiting, scopes)
  end
  call("HSET", keys.account, "position", position)
  call("ZREM", keys.due_admission, e.user_id .. ":" .. e.request_id)
  call("HSET", keys.fences, e.source, e.source_position)
end
