#!lua flags=allow-oom
--[[ abandon: end an admission whose request did not come in time. Judged where the request would live.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] due_request  zset    horde:due:request
KEYS[5] delete_retry set     horde:chat:image_delete_retry

ARGV[1] deadline_ms  0: whoever was admitted gives it up itself
ARGV[2] most         objects that may wait for their deletion
ARGV[3..] event      flat fields of abandoned

RETURNS {"OK", position, dropped}  dropped: objects for whose deletion there was no room, comma-joined
REFUSES REBUILDING  a rebuild of state runs
        EXISTS      the request came, or came and is gone
        NOT_DUE     the deadline is still ahead
EVENTS  abandoned
]]
-- use lib/event
-- use apply/abandoned
local request, due_request, delete_retry = KEYS[3], KEYS[4], KEYS[5]
local deadline, most = tonumber(ARGV[1]), tonumber(ARGV[2])

if gated() then return {"REBUILDING"} end
local known = call("HMGET", request, "state", "position")
if known[1] and known[1] ~= "abandoned" then return {"EXISTS"} end
if not known[1] and now() <= deadline then return {"NOT_DUE"} end

local flat = event_from(3)
local e = fields_of(flat)
-- A repeat may have stored them after they were deleted: they are deleted again.
local position = known[2] or emit({request = request, due_request = due_request}, flat)
return {"OK", position, queue_objects(delete_retry, e.request_id, objects_of(e), most)}
