--[[ worker-changed: what it may do from now on. Keys: worker. ]]
-- use lib/emit
-- use lib/ids
apply["worker-changed"] = function(keys, e, position, ms)
  for _, what in ipairs(ids_of(e.changed)) do
    if what == "maintenance" then
      call("HSET", keys.worker, "maintenance", e.maintenance, "maintenance_msg", e.maintenance_msg)
    elseif what == "paused" then
      call("HSET", keys.worker, "paused", e.paused, "paused_ms", text(ms))
    end
  end
  call("HSET", keys.worker, "position", position)
end
