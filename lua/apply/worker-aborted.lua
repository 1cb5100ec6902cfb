--[[ worker-aborted: one more dropped job. Keys: worker, fences. ]]
-- use lib/emit
apply["worker-aborted"] = function(keys, e, position)
  call("HINCRBY", keys.worker, "aborts", 1)
  if e.window_ms then call("HSET", keys.worker, "abort_window_ms", e.window_ms, "recent_aborts", e.recent) end
  if (e.maintenance_msg or "") ~= "" then
    call("HSET", keys.worker, "maintenance", "1", "maintenance_msg", e.maintenance_msg, "recent_aborts", "0")
  end
  call("HSET", keys.worker, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
