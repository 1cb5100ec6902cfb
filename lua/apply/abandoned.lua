--[[ abandoned: the admitted request never came. Keys: request, due_request. A tombstone until it expires. ]]
-- use lib/emit
-- use lib/objects
-- use lib/tombstone
apply["abandoned"] = function(keys, e, position, ms)
  bury(keys, e, text(ms + tonumber(e.ttl) * 1000), objects_of(e), position)
end
