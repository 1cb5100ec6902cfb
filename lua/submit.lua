#!lua
--[[ submit: store an admitted request and let it wait.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] content      hash    horde:content:<request id>      (ephemeral) field, value, …
KEYS[5] due_request  zset    horde:due:request

ARGV[1] deadline_ms  the admission's deadline; past it only `abandon` may speak
ARGV[2] content_ttl  seconds, the backstop for content
ARGV[3] content      cmsgpack list of field, value, …
ARGV[4..] event      flat fields of submitted

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        ABANDONED   the admission was given up
        TOO_LATE    the admission's deadline passed
EVENTS  submitted
]]
-- use lib/event
-- use apply/submitted
local request, content, due_request = KEYS[3], KEYS[4], KEYS[5]
local deadline, content_ttl = tonumber(ARGV[1]), ARGV[2]

if gated() then return {"REBUILDING"} end
local known = call("HMGET", request, "state", "position")
if known[1] == "abandoned" then return {"ABANDONED"} end
-- A repeat of the same command: the id was minted for it alone.
if known[1] then return {"OK", known[2]} end
if now() > deadline then return {"TOO_LATE"} end

local position = emit({request = request, due_request = due_request}, event_from(4))
call("HSET", content, unpack(cmsgpack.unpack(ARGV[3])))
call("EXPIRE", content, content_ttl)
return {"OK", position}
