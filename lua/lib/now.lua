--[[ now(): milliseconds of this partition's clock: Redis TIME, never earlier than the partition's last event.

KEYS[1] is the log and KEYS[2] the control hash in every script. Under the test setting the clock is shifted by the
control hash's clock_ms; without that setting the field is not read.
]]
-- use lib/call
local EVENTS, CONTROL = KEYS[1], KEYS[2]

-- Milliseconds have 13 digits: tostring would keep them, but 15 digits turn to an exponent, so one spelling for all.
local function text(number) return string.format("%.0f", number) end

local moment
local function now()
  if moment then return moment end
  local time = redis.call("TIME")
  moment = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  if TEST then moment = moment + (tonumber(call("HGET", CONTROL, "clock_ms") or "") or 0) end
  local last = call("XREVRANGE", EVENTS, "+", "-", "COUNT", 1)[1]
  if last then
    local ms = tonumber(string.match(last[1], "^(%d+)-"))
    if ms > moment then moment = ms end
  end
  return moment
end

-- A rebuild drops and folds hot state; meanwhile every command is refused.
local function gated() -- luacheck: ignore 211 (replay_event runs behind the gate)
  return call("HGET", CONTROL, "gate")
end
