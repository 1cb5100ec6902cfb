#!lua
--[[ admit: let an account submit one request until a deadline, hold kudos for it, charge its tax, and claim its operation key.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] account        hash    horde:account:<account id>
KEYS[4] clearing       hash    horde:clearing
KEYS[5] due_admission  zset    horde:due:admission
KEYS[6..] named        hash    horde:claim:<account id>:<operation key>, where the request has one, then
                               horde:shared_key:<id>, where it is submitted with one

ARGV[1] request_id
ARGV[2] user_id
ARGV[3] seconds     until the deadline
ARGV[4] jobs        that the request asks for
ARGV[5] limit       jobs that may wait
ARGV[6] scopes      digests of models, comma-joined: their jobs count; empty: all jobs of the account do
ARGV[7] hold        10^-4 kudos that have to be there, and are held; 0: none
ARGV[8] tax         10^-4 kudos
ARGV[9] claims      1 where it has an operation key
ARGV[10] shared_key its id, empty where there is none
ARGV[11..] event    flat fields of admitted

RETURNS {"OK", deadline_ms, kudos}
REFUSES REBUILDING   a rebuild of state runs
        NO_ACCOUNT   the account is gone
        NO_KEY       the shared key is gone
        CLAIMED      the operation key names another request: it, its fingerprint, its estimate and its admission's
                     deadline come with the answer, the account's kudos, and what that admission stores as objects
                     (lib/objects; "-" where it is closed)
        TOO_MANY     more jobs would wait than may; those that wait come with the answer
        KEY_EXPIRED  the shared key's time is up
        KEY_SHORT    the shared key may not spend as much, or nothing any more; what it may comes with the answer
        SHORT        the account has not as much; what it has comes with the answer
EVENTS  admitted floored
]]
-- use lib/event
-- use lib/ids
-- use lib/floor
-- use apply/admitted
local account, clearing, due_admission = KEYS[3], KEYS[4], KEYS[5]
local request_id, user_id, seconds, jobs, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local scopes, held, tax, shared_key = ids_of(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[10]
local claim = ARGV[9] == "1" and KEYS[6] or nil
local key = shared_key ~= "" and KEYS[claim and 7 or 6] or nil

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "kudos", "waiting", "admission:" .. request_id, "held", "floor",
  "held:" .. shared_key)
if not known[1] then return {"NO_ACCOUNT"} end
-- A repeat of the same command: the id was minted for it alone.
local _, open_until = admission_parts(known[4])
if open_until then return {"OK", open_until, known[2]} end
if claim then
  local c = call("HMGET", claim, "request", "fingerprint", "kudos", "deadline_ms")
  if c[1] == request_id then return {"OK", c[4], known[2]} end
  if c[1] then
    local open, _, _, _, _, _, _, objects = admission_parts(call("HGET", account, "admission:" .. c[1]))
    return {"CLAIMED", c[1], c[2], c[3], c[4], known[2], open and objects or "-"}
  end
end
local waiting = tonumber(known[3] or "0")
if #scopes > 0 then
  -- The busiest of the models decides: a request that names two of them is not counted twice.
  waiting = 0
  for _, scope in ipairs(scopes) do
    waiting = math.max(waiting, tonumber(call("HGET", account, "scope:" .. scope) or "0"))
  end
end
if waiting + jobs > limit then return {"TOO_MANY", text(waiting)} end
if key then
  local k = call("HMGET", key, "kudos", "expiry_ms")
  if not k[1] then return {"NO_KEY"} end
  if k[2] ~= "0" and tonumber(k[2]) <= now() then return {"KEY_EXPIRED"} end
  local left = tonumber(k[1]) - tonumber(known[7] or "0")
  -- An empty one lets nothing be charged to its owner, and holds do not tell of what is free.
  if k[1] == "0" or (k[1] ~= "-1" and held > left) then return {"KEY_SHORT", text(left)} end
end
local available = tonumber(known[2]) - tonumber(known[6] or "0") - tonumber(known[5] or "0")
if held > 0 and held > available then return {"SHORT", text(available)} end

local deadline = text(now() + seconds * 1000)
local keys = {account = account, clearing = clearing, due_admission = due_admission, claim = claim, shared_key = key}
-- What the floor lifts again at once was never paid: given back, it would be kudos out of nothing.
local above = tonumber(known[2]) - tonumber(known[6] or "0")
local refundable = text(math.max(0, math.min(tax, above)))
emit(keys, event_from(11, "deadline_ms", deadline, "refundable", refundable))
if tax > 0 then lift(keys, user_id) end
return {"OK", deadline, known[2]}
