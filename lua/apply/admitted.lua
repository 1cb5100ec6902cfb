--[[ admitted: the account holds an open admission. Keys: account, due_admission. ]]
-- use lib/emit
apply["admitted"] = function(keys, e, position)
  call("HSET", keys.account, "admission:" .. e.request_id, e.jobs .. ":" .. e.deadline_ms, "position", position)
  call("HINCRBY", keys.account, "jobs", e.jobs)
  call("ZADD", keys.due_admission, e.deadline_ms, e.user_id .. ":" .. e.request_id)
end
