--[[ shared-key-changed: another budget, name, end or cap. Keys: shared_key. ]]
-- use lib/emit
-- use lib/ids
apply["shared-key-changed"] = function(keys, e, position)
  for _, what in ipairs(ids_of(e.changed)) do call("HSET", keys.shared_key, what, e[what]) end
  call("HSET", keys.shared_key, "position", position)
end
