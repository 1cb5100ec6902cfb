--[[ faulted: the job failed; its restart, or the end of the request, is the same fact. Keys: request, generation, due_lease. ]]
-- use lib/emit
apply["faulted"] = function(keys, e, position, ms)
  call("HSET", keys.generation, "state", "faulted", "position", position)
  if e.job_ttl then call("HSET", keys.generation, "job_ttl", e.job_ttl) end
  call("ZREM", keys.due_lease, e.generation_id)
  call("HSET", keys.request, "waiting", e.waiting, "holdoff_worker", e.worker_id,
    "holdoff_ms", text(ms + tonumber(e.holdoff) * 1000), "position", position)
  call("HINCRBY", keys.request, "processing", -1)
  call("HINCRBY", keys.request, "faults", 1)
  if (e.fault_rc or "") ~= "" then
    call("HSET", keys.request, "fault_rc", e.fault_rc, "fault_code", e.fault_code)
  end
  if e.exhausted == "1" then call("HSET", keys.request, "faulted", "1") end
  if e.done == "1" then call("HSET", keys.request, "state", "done") end
end
