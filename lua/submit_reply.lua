#!lua flags=allow-oom
--[[ submit_reply: store that a worker delivered the generation that it holds.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] request      hash    horde:request:<request id>
KEYS[4] generation   hash    horde:generation:<generation id>
KEYS[5] content      hash    horde:content:<request id>        (ephemeral) reply:<generation id>, command:<generation id>
KEYS[6] lease        hash    horde:chat:lease:<generation id>  (ephemeral)
KEYS[7] due_lease    zset    horde:due:lease
KEYS[8] due_request  zset    horde:due:request

ARGV[1] generation_id
ARGV[2] command      id of this very command, so that a repeat of it is told from a second submit
ARGV[3] reply        JSON bytes, to content only
ARGV[4] content_ttl  seconds, the backstop for content, counted again
ARGV[5..] event      flat fields of submitted-reply

RETURNS {"OK", position, finished, done}
REFUSES REBUILDING         a rebuild of state runs
        NOT_FOUND          no such generation
        ALREADY_SUBMITTED  a reply is stored
        ABORTED            the generation lapsed, faulted, was cancelled or given back
EVENTS  submitted-reply
]]
-- use lib/event
-- use apply/submitted-reply
local request, generation, content, lease = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local generation_id, command, reply, content_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if gated() then return {"REBUILDING"} end
local g = call("HMGET", generation, "state", "position", "assigned_ms")
if not g[1] then return {"NOT_FOUND"} end
local r = call("HMGET", request, "state", "waiting", "processing", "finished", "jobs", "cancelled",
  "max_length")
if g[1] == "finished" then
  if call("HGET", content, "command:" .. generation_id) == command then
    return {"OK", g[2], r[4], r[1] == "done" and "1" or "0"}
  end
  return {"ALREADY_SUBMITTED"}
end
if g[1] ~= "pending" then return {"ABORTED"} end

local finished = tonumber(r[4]) + 1
local over = tonumber(r[2]) == 0 and tonumber(r[3]) == 1
local done = r[1] == "open" and over and (finished >= tonumber(r[5]) or r[6] == "1")
local position = emit({request = request, generation = generation, due_lease = KEYS[7], due_request = KEYS[8]},
  event_from(5, "finished", text(finished), "done", done and "1" or "0",
    "elapsed_ms", text(math.max(1, now() - tonumber(g[3]))), "max_length", r[7]))
call("HSET", content, "reply:" .. generation_id, reply, "command:" .. generation_id, command)
call("EXPIRE", content, content_ttl)
call("DEL", lease)
return {"OK", position, text(finished), done and "1" or "0"}
