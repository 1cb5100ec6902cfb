--[[ progressed: the lease lives longer than the log knew. Keys: generation, due_lease. ]]
-- use lib/emit
apply["progressed"] = function(keys, e, position)
  call("HSET", keys.generation, "deadline_ms", e.deadline_ms, "job_ttl", e.job_ttl, "position", position)
  call("ZADD", keys.due_lease, e.deadline_ms, e.generation_id)
end
