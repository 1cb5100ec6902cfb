--[[ event_from(first, …): the event's flat fields from ARGV[first] on, and behind them those that only the script knows. ]]
local function event_from(first, ...)
  local flat = {unpack(ARGV, first)}
  for _, value in ipairs({...}) do flat[#flat + 1] = value end
  return flat
end
