--[[ abandoned: the admitted request never came. Keys: request, due_request. A tombstone until it expires. ]]
-- use lib/emit
apply["abandoned"] = function(keys, e, position, ms)
  local expires = ms + tonumber(e.ttl) * 1000
  call("HSET", keys.request, "state", "abandoned", "user", e.user_id, "generations", "", "finished", "0",
    "expires_ms", text(expires), "position", position)
  call("ZADD", keys.due_request, text(expires), e.request_id)
end
