--[[ touch(keys, request_id, position, ms): the request moved: its expiry is counted again from here. ]]
-- use lib/emit
local function touch(keys, request_id, position, ms)
  local expires = ms + tonumber(call("HGET", keys.request, "ttl")) * 1000
  call("HSET", keys.request, "expires_ms", text(expires), "position", position)
  call("ZADD", keys.due_request, text(expires), request_id)
end
