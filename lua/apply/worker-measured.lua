--[[ worker-measured: how fast the worker was with its newest replies. Keys: worker, fences. ]]
-- use lib/emit
-- use lib/speeds
apply["worker-measured"] = function(keys, e, position)
  local speeds = newest_speeds(call("HGET", keys.worker, "speeds") or "", e.samples)
  call("HSET", keys.worker, "speeds", speeds, "speed", e.speed, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
