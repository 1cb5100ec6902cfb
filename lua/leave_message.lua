#!lua
--[[ leave_message: keep a message for workers until its time is over, or take one away, and drop those whose time is.

KEYS[1] events    stream  horde:events
KEYS[2] control   hash    horde:control
KEYS[3] messages  hash    horde:worker_messages  (durable) id: `<end, ms> <message>`, and `version`: how often it changed

ARGV[1] id       of the message
ARGV[2] ms       from now; 0: take it away
ARGV[3] most     messages
ARGV[4] message  JSON

RETURNS {"OK", until}  until: ms, or empty where there are too many already, or none was to be kept
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/now
local messages, id, ms, most, message = KEYS[3], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local entries = call("HGETALL", messages) -- no more than `most`, and the version
local kept = 0
for i = 1, #entries, 2 do
  local ends = tonumber(string.match(entries[i + 1], "^(%d+) "))
  if ends and (ends <= now() or entries[i] == id) then
    call("HDEL", messages, entries[i])
  elseif ends then
    kept = kept + 1
  end
end
call("HINCRBY", messages, "version", 1)
if ms == 0 or kept >= most then return {"OK", ""} end
local ending = text(now() + ms)
call("HSET", messages, id, ending .. " " .. message)
return {"OK", ending}
