#!lua
--[[ check_in: a worker shows itself and declares what it serves.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] worker   hash    horde:worker:<worker id>
KEYS[4..] names  string  horde:worker_name:<digest of the name>, if that is in the worker's partition

ARGV[1] worker_id
ARGV[2] name
ARGV[3] user_id   the caller
ARGV[4] trusted   1 or 0, the caller's role
ARGV[5] declared  digest of the declaration
ARGV[6] window    seconds in which an unchanged declaration writes nothing
ARGV[7] stale     seconds after which a silent worker was offline
ARGV[8] new       1 where the id was just minted for a name that nobody had
ARGV[9] reward      10^-4 kudos that its owner gets for a stretch of uptime
ARGV[10] stretch    seconds
ARGV[11] trusted_ms since when its owner is trusted: a pause of before then is over; 0: it is not
ARGV[12..] event    flat fields of checked-in

RETURNS {"OK", maintenance, paused, speed, maintenance_msg}  speed: 10^-3 tokens a second, empty where none was measured
REFUSES REBUILDING   a rebuild of state runs
        OTHER_ID     another worker id holds the name; it comes with the answer
        WRONG_OWNER  the name belongs to another account's worker
        RENAMED      the worker is called something else; that comes with the answer
        GONE         there is no such worker any more
EVENTS  checked-in worker-changed
]]
-- use lib/event
-- use apply/checked-in
-- use apply/worker-changed
local worker, worker_name = KEYS[3], KEYS[4]
local worker_id, name, user_id, trusted, declared = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local window, stale, new = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local reward, stretch, trusted_ms = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])

if gated() then return {"REBUILDING"} end
local claim = worker_name and call("GET", worker_name)
if claim and claim ~= worker_id then return {"OTHER_ID", claim} end
local w = call("HMGET", worker, "name", "user", "trusted", "declared", "checked_in_ms", "maintenance", "paused",
  "speed", "maintenance_msg", "uptime_ms", "rewarded_uptime_ms", "paused_ms")
if w[1] and w[2] ~= user_id then return {"WRONG_OWNER"} end
if w[1] and w[1] ~= name then return {"RENAMED", w[1]} end
-- A claim without its worker is one that the settler has not freed yet.
if not w[1] and (new ~= "1" or claim or not worker_name) then return {"GONE"} end
if w[7] == "1" and tonumber(w[12] or "0") < trusted_ms then
  emit({worker = worker}, {"type", "worker-changed", "v", "1", "worker_id", worker_id, "changed", "paused",
    "maintenance", "0", "maintenance_msg", "", "paused", "0", "data", "{}"})
  w[7] = "0"
end
if not w[1] or w[3] ~= trusted or w[4] ~= declared or now() - tonumber(w[5]) >= window * 1000 then
  local uptime, since = tonumber(w[10] or "0"), now() - tonumber(w[5] or "0")
  local rewarded, due = tonumber(w[11] or "0"), "0"
  if since > stale * 1000 then
    rewarded = uptime  -- whoever was away begins a stretch anew
  elseif w[6] == "0" and w[7] == "0" then
    uptime = uptime + since
    if uptime - rewarded > stretch * 1000 then due, rewarded = reward, uptime end
  end
  emit({worker = worker, worker_name = worker_name},
    event_from(12, "created", w[1] and "0" or "1", "uptime_ms", text(uptime), "reward", due,
      "rewarded_uptime_ms", text(rewarded)))
end
return {"OK", w[6] or "0", w[7] or "0", w[8] or "", w[9] or ""}
