--[[ released: the admission is closed. Keys: account, due_admission, fences. ]]
-- use lib/emit
apply["released"] = function(keys, e, position)
  local field = "admission:" .. e.request_id
  local jobs = string.match(call("HGET", keys.account, field) or "0:", "^(%d+):")
  call("HDEL", keys.account, field)
  call("HINCRBY", keys.account, "jobs", "-" .. jobs)
  call("HSET", keys.account, "position", position)
  call("ZREM", keys.due_admission, e.user_id .. ":" .. e.request_id)
  call("HSET", keys.fences, e.source, e.source_position)
end
