#!lua
--[[ set_modes: switch the modes of the whole deployment.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] modes    hash    horde:modes

ARGV[1] maintenance  1 or 0
ARGV[2..] event      flat fields of modes-changed

RETURNS {"OK", changed}
REFUSES REBUILDING  a rebuild of state runs
EVENTS  modes-changed
]]
-- use lib/event
-- use apply/modes-changed
local modes, maintenance = KEYS[3], ARGV[1]

if gated() then return {"REBUILDING"} end
if (call("HGET", modes, "maintenance") or "0") == maintenance then return {"OK", "0"} end
emit({modes = modes}, event_from(2))
return {"OK", "1"}
