#!lua
--[[ time_out: shut an address or a network out until a time, and drop those whose time is over.

KEYS[1] events    stream  horde:events
KEYS[2] control   hash    horde:control
KEYS[3] timeouts  hash    horde:ip_timeouts  (durable) address or network: end, ms

ARGV[1] network  empty: only drop what is over
ARGV[2] ms       from now
ARGV[3] most     entries

RETURNS {"OK", until}  until: ms, or empty where there are too many entries already, or nothing was to be added
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/now
local timeouts, network, most = KEYS[3], ARGV[1], tonumber(ARGV[3])

local entries = call("HGETALL", timeouts) -- no more than `most`
local kept, known = 0, false
for i = 1, #entries, 2 do
  if tonumber(entries[i + 1]) <= now() then
    call("HDEL", timeouts, entries[i])
  else
    kept = kept + 1
    if entries[i] == network then known = true end
  end
end
if network == "" or (kept >= most and not known) then return {"OK", ""} end
local ending = text(now() + ARGV[2])
call("HSET", timeouts, network, ending)
return {"OK", ending}
