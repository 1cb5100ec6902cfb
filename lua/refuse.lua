#!lua
--[[ refuse: remember that a reply to a pending generation was refused, and what its worker was told.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] request     hash    horde:request:<request id>
KEYS[4] generation  hash    horde:generation:<generation id>
KEYS[5] content     hash    horde:content:<request id>        (ephemeral) fault_reason

ARGV[1] rc       return code of the refusal
ARGV[2] message  what the worker is told, to content only: it may quote the reply
ARGV[3..] event  flat fields of refused

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        ENDED       the generation is not pending any more
EVENTS  refused
]]
-- use lib/event
-- use apply/refused
local request, generation, content = KEYS[3], KEYS[4], KEYS[5]
local rc, message = ARGV[1], ARGV[2]

if gated() then return {"REBUILDING"} end
local g = call("HMGET", generation, "state", "refusal_rc", "position")
if g[1] ~= "pending" then return {"ENDED"} end

-- A worker may send the same bad reply many times, and a command may arrive twice: the fact is the same.
local position = g[3]
if g[2] ~= rc or call("HGET", request, "fault_rc") ~= rc then
  position = emit({request = request, generation = generation}, event_from(3))
end
if call("EXISTS", content) == 1 then call("HSET", content, "fault_reason", message) end
return {"OK", position}
