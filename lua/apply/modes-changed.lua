--[[ modes-changed: the modes of the whole deployment. Keys: modes. ]]
-- use lib/emit
apply["modes-changed"] = function(keys, e, position)
  call("HSET", keys.modes, "maintenance", e.maintenance, "position", position)
end
