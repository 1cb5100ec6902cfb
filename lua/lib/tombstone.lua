--[[ bury(keys, e, expires_ms, objects, position): what is left of a request that may not come (again): a mark until
`expires_ms`, which still names the objects that an upload under way may store.

Keys: request, due_request.
]]
-- use lib/objects
local function bury(keys, e, expires_ms, objects, position)
  call("HSET", keys.request, "state", "abandoned", "user", e.user_id, "generations", "", "finished", "0",
    "expires_ms", expires_ms, "position", position)
  keep_objects(keys.request, objects)
  call("ZADD", keys.due_request, expires_ms, e.request_id)
end
