#!lua
--[[ admit: let an account submit one request until a deadline.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] account        hash    horde:account:<account id>
KEYS[4] due_admission  zset    horde:due:admission

ARGV[1] request_id
ARGV[2] seconds   until the deadline
ARGV[3..] event   flat fields of admitted

RETURNS {"OK", deadline_ms, kudos}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  the account is gone
EVENTS  admitted
]]
-- use lib/event
-- use apply/admitted
local account, due_admission = KEYS[3], KEYS[4]
local request_id, seconds = ARGV[1], tonumber(ARGV[2])

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "kudos", "admission:" .. request_id)
if not known[1] then return {"NO_ACCOUNT"} end
if known[3] then return {"OK", string.match(known[3], ":(%d+)$"), known[2]} end

local deadline = text(now() + seconds * 1000)
emit({account = account, due_admission = due_admission}, event_from(3, "deadline_ms", deadline))
return {"OK", deadline, known[2]}
