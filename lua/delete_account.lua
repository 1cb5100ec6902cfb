#!lua
--[[ delete_account: an account is nobody's from now on. Its name, its keys, its roles and its profile go at once.

KEYS[1] events       stream  horde:events
KEYS[2] control      hash    horde:control
KEYS[3] account      hash    horde:account:<account id>
KEYS[4] api_key      string  horde:api_key:<HMAC of its key>
KEYS[5] passkeys     hash    horde:passkeys, the account of each HMAC
KEYS[6] of_account   set     horde:shared_keys:<account id>
KEYS[7] profile      hash    horde:profile:<account id>  (durable)
KEYS[8] due_recurring zset   horde:due:recurring
KEYS[9..] shared_keys hash   horde:shared_key:<id>, of each that it has

ARGV[1] key      HMAC of its key, like the next as its caller saw it
ARGV[2] passkey  HMAC, empty for none
ARGV[3] ids      of its shared keys, comma-joined
ARGV[4..] event  flat fields of account-deleted

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account
        STALE       it has other keys by now
EVENTS  account-deleted
]]
-- use lib/event
-- use lib/ids
-- use apply/account-deleted
local account, api_key, passkeys, of_account, profile = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local key, passkey, ids = ARGV[1], ARGV[2], ids_of(ARGV[3])
local shared_keys = {unpack(KEYS, 9)}

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "key", "passkey", "deleted_ms")
-- A repeat: it is gone, and its number is nobody else's.
if known[4] then return {"OK"} end
if not known[1] then return {"NO_ACCOUNT"} end
local same = known[2] == key and (known[3] or "") == passkey and call("SCARD", of_account) == #ids
for _, id in ipairs(ids) do same = same and call("SISMEMBER", of_account, id) == 1 end
if not same then return {"STALE"} end
call("DEL", profile)
emit({account = account, api_key = api_key, passkeys = passkeys, of_account = of_account, shared_keys = shared_keys,
  due_recurring = KEYS[8]},
  event_from(4))
return {"OK"}
