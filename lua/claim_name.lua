#!lua
--[[ claim_name: register a name for a worker that is to be called so.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] worker_name  string  horde:worker_name:<digest of the name>

ARGV[1..] event  flat fields of name-claimed

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        TAKEN       the name leads to a worker already; its id comes with the answer
EVENTS  name-claimed
]]
-- use lib/event
-- use apply/name-claimed
local worker_name = KEYS[3]

if gated() then return {"REBUILDING"} end
local claim = call("GET", worker_name)
if claim then return {"TAKEN", claim} end
return {"OK", emit({worker_name = worker_name}, event_from(1))}
