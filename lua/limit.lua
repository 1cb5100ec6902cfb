#!lua
--[[ limit: count one call in the running window of each of its limits, or in none where one of them is spent.

A window starts with its first call (the fixed windows of flask-limiter) and stands in its key as `<end, ms> <count>`: its
end is judged by the clock, the TTL only clears up. A call that is refused spends nothing, so who asks too quickly does not
use up the minute's budget as well.

KEYS[1] events     stream  horde:events
KEYS[2] control    hash    horde:control
KEYS[3..] windows  string  horde:limit:<digest>  (ephemeral)

ARGV[1..] limits  for each window: calls allowed, its length in ms

RETURNS {"OK", which, calls, left}  of one window: its number, its calls with this one, ms until its end. Where windows are
        spent (calls: one more than allowed) of these the one that ends last, else the one with fewest calls left
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/now
local ends, calls, told, told_left, spent = {}, {}, nil, nil, false
for i = 1, #KEYS - 2 do
  local stored = call("GET", KEYS[i + 2])
  local ending, count = string.match(stored or "", "^(%d+) (%d+)$")
  if not ending or tonumber(ending) <= now() then ending, count = now() + ARGV[2 * i], 0 end
  ends[i], calls[i] = tonumber(ending), count + 1
  local left = ARGV[2 * i - 1] - calls[i]
  if left < 0 then
    if not spent or ends[i] > ends[told] then told, spent = i, true end
  elseif not spent and (not told or left < told_left) then
    told, told_left = i, left
  end
end

if not spent then
  for i = 1, #KEYS - 2 do
    call("SET", KEYS[i + 2], text(ends[i]) .. " " .. text(calls[i]), "PX", text(ends[i] - now()))
  end
end
return {"OK", text(told), text(calls[told]), text(ends[told] - now())}
