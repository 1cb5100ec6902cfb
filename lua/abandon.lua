#!lua flags=allow-oom
--[[ abandon: end an admission whose request did not come in time. Judged where the request would live.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] due_request  zset    horde:due:request

ARGV[1] deadline_ms
ARGV[2..] event      flat fields of abandoned

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        EXISTS      the request came, or came and is gone
        NOT_DUE     the deadline is still ahead
EVENTS  abandoned
]]
-- use lib/event
-- use apply/abandoned
local request, due_request = KEYS[3], KEYS[4]
local deadline = tonumber(ARGV[1])

if gated() then return {"REBUILDING"} end
local known = call("HMGET", request, "state", "position")
if known[1] == "abandoned" then return {"OK", known[2]} end
if known[1] then return {"EXISTS"} end
if now() <= deadline then return {"NOT_DUE"} end

local position = emit({request = request, due_request = due_request}, event_from(2))
return {"OK", position}
