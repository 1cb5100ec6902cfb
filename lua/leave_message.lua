#!lua
--[[ leave_message: keep a message for workers until its time is over, or take one away, and drop those whose time is.

KEYS[1] events    stream  horde:events
KEYS[2] control   hash    horde:control
KEYS[3] messages  hash    horde:worker_messages  (durable) id: `<end, ms> <owner> <message>`, the owner for what owners
                          leave, and `version`: how often it changed

ARGV[1] id       of the message
ARGV[2] ms       from now; 0: take it away
ARGV[3] owner    account that leaves it, empty for moderators
ARGV[4] most     messages of owners, and as many of moderators
ARGV[5] of_owner messages of one owner
ARGV[6] message  JSON

RETURNS {"OK", until}  until: ms, or empty where there are too many already, or none was to be kept
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/now
local messages, id, ms, owner = KEYS[3], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local most, of_owner, message = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local entries = call("HGETALL", messages) -- no more than twice `most`, and the version
local alike, own = 0, 0
for i = 1, #entries, 2 do
  local ends, of = string.match(entries[i + 1], "^(%d+) (%d*)")
  if ends and (tonumber(ends) <= now() or entries[i] == id) then
    call("HDEL", messages, entries[i])
  elseif ends then
    if (of == "") == (owner == "") then alike = alike + 1 end
    if of == owner then own = own + 1 end
  end
end
call("HINCRBY", messages, "version", 1)
if ms == 0 or alike >= most or (owner ~= "" and own >= of_owner) then return {"OK", ""} end
local ending = text(now() + ms)
call("HSET", messages, id, ending .. " " .. owner .. (owner == "" and "" or " ") .. message)
return {"OK", ending}
