--[[ checked-in: what the worker declares now. Keys: worker, worker_name. ]]
-- use lib/emit
apply["checked-in"] = function(keys, e, position, ms)
  if e.created == "1" then
    call("HSET", keys.worker, "created_ms", text(ms), "aborts", "0", "maintenance", "0", "paused", "0")
    call("SET", keys.worker_name, e.worker_id)
  end
  call("HSET", keys.worker, "name", e.name, "user", e.user_id, "trusted", e.trusted, "declared", e.declared,
    "checked_in_ms", text(ms), "uptime_ms", e.uptime_ms or "0",
    "rewarded_uptime_ms", e.rewarded_uptime_ms or "0", "position", position)
end
