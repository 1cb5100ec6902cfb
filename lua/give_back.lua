#!lua flags=allow-oom
--[[ give_back: put a job back into the queue without blame; whoever was to get it is gone.

Also for an id whose `assign` got no answer: if that call has not run yet, the id is spent before it does.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] request     hash    horde:request:<request id>
KEYS[4] generation  hash    horde:generation:<generation id>
KEYS[5] lease       hash    horde:chat:lease:<generation id>  (ephemeral)
KEYS[6] due_lease   zset    horde:due:lease

ARGV[1..] event  flat fields of returned

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        GONE        the request is gone, and its generations with it
        ENDED       the generation ended before
EVENTS  returned
]]
-- use lib/event
-- use apply/returned
local request, generation, lease, due_lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6]

if gated() then return {"REBUILDING"} end
local r = call("HMGET", request, "state", "waiting", "processing", "cancelled", "user", "finished")
if not r[1] or r[1] == "abandoned" then return {"GONE"} end
local state = call("HGET", generation, "state")
if state and state ~= "pending" then return {"ENDED"} end

local waiting, processing = tonumber(r[2]), tonumber(r[3])
if state == "pending" then
  processing = processing - 1
  if r[1] == "open" and r[4] ~= "1" then waiting = waiting + 1 end
end
local done = r[1] == "open" and waiting == 0 and processing == 0
local position = emit({request = request, generation = generation, due_lease = due_lease},
  event_from(1, "user_id", r[5], "waiting", text(waiting), "finished", r[6], "done", done and "1" or "0"))
call("DEL", lease)
return {"OK", position}
