--[[ bury(keys, e, expires_ms, position): what is left of a request that may not come (again): a mark until `expires_ms`.

Keys: request, due_request.
]]
-- use lib/call
local function bury(keys, e, expires_ms, position)
  call("HSET", keys.request, "state", "abandoned", "user", e.user_id, "generations", "", "finished", "0",
    "expires_ms", expires_ms, "position", position)
  call("ZADD", keys.due_request, expires_ms, e.request_id)
end
