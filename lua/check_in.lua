#!lua
--[[ check_in: a worker shows itself and declares what it serves.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] worker       hash    horde:worker:<worker id>
KEYS[4] worker_name  string  horde:worker_name:<digest of the name>

ARGV[1] worker_id
ARGV[2] name
ARGV[3] user_id   the caller
ARGV[4] trusted   1 or 0, the caller's role
ARGV[5] declared  digest of the declaration
ARGV[6] window    seconds in which an unchanged declaration writes nothing
ARGV[7..] event   flat fields of checked-in

RETURNS {"OK", maintenance, paused}
REFUSES REBUILDING   a rebuild of state runs
        OTHER_ID     another worker id holds the name; it comes with the answer
        WRONG_OWNER  the name belongs to another account's worker
EVENTS  checked-in
]]
-- use lib/event
-- use apply/checked-in
local worker, worker_name = KEYS[3], KEYS[4]
local worker_id, name, user_id, trusted, declared = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local window = tonumber(ARGV[6])

if gated() then return {"REBUILDING"} end
local claim = call("GET", worker_name)
if claim and claim ~= worker_id then return {"OTHER_ID", claim} end
local w = call("HMGET", worker, "name", "user", "trusted", "declared", "checked_in_ms", "maintenance", "paused")
if w[1] and w[2] ~= user_id then return {"WRONG_OWNER"} end
if not w[1] or w[1] ~= name or w[3] ~= trusted or w[4] ~= declared or now() - tonumber(w[5]) >= window * 1000 then
  emit({worker = worker, worker_name = worker_name}, event_from(7, "created", w[1] and "0" or "1"))
end
return {"OK", w[6] or "0", w[7] or "0"}
