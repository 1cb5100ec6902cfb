#!lua
--[[ admit: let an account submit one request until a deadline, and claim its operation key.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] account        hash    horde:account:<account id>
KEYS[4] due_admission  zset    horde:due:admission
KEYS[5..] claim        hash    horde:claim:<account id>:<operation key>, where the request has one

ARGV[1] request_id
ARGV[2] seconds   until the deadline
ARGV[3] jobs      that the request asks for
ARGV[4] limit     jobs that may wait
ARGV[5] scopes    digests of models, comma-joined: their jobs count; empty: all jobs of the account do
ARGV[6..] event   flat fields of admitted

RETURNS {"OK", deadline_ms, kudos}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  the account is gone
        CLAIMED     the operation key names another request: it, its fingerprint, its estimate and its admission's
                    deadline come with the answer, and the account's kudos
        TOO_MANY    more jobs would wait than may; those that wait come with the answer
EVENTS  admitted
]]
-- use lib/event
-- use lib/ids
-- use apply/admitted
local account, due_admission, claim = KEYS[3], KEYS[4], KEYS[5]
local request_id, seconds, jobs, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local scopes = ids_of(ARGV[5])

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "kudos", "waiting", "admission:" .. request_id)
if not known[1] then return {"NO_ACCOUNT"} end
-- A repeat of the same command: the id was minted for it alone.
local _, open_until = admission_parts(known[4])
if open_until then return {"OK", open_until, known[2]} end
if claim then
  local c = call("HMGET", claim, "request", "fingerprint", "kudos", "deadline_ms")
  if c[1] == request_id then return {"OK", c[4], known[2]} end
  if c[1] then return {"CLAIMED", c[1], c[2], c[3], c[4], known[2]} end
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

local deadline = text(now() + seconds * 1000)
emit({account = account, due_admission = due_admission, claim = claim}, event_from(6, "deadline_ms", deadline))
return {"OK", deadline, known[2]}
