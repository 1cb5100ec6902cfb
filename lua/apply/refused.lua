--[[ refused: why the last reply to the generation was not taken, and with it the request's last fault. Keys: request, generation. ]]
-- use lib/emit
apply["refused"] = function(keys, e, position)
  call("HSET", keys.generation, "refusal_rc", e.rc, "position", position)
  call("HSET", keys.request, "fault_rc", e.rc, "fault_code", "", "position", position)
end
