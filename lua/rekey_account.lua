#!lua
--[[ rekey_account: give an account another API key. The former one is nobody's from now on.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] account  hash    horde:account:<account id>
KEYS[4] api_key  string  horde:api_key:<HMAC of the new key>
KEYS[5] former   string  horde:api_key:<HMAC of the former key>

ARGV[1] key      HMAC of the new key
ARGV[2] was      HMAC of the key that its caller saw
ARGV[3..] event  flat fields of account-rekeyed

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account, or it is deleted
        STALE       it has another key by now
EVENTS  account-rekeyed
]]
-- use lib/event
-- use apply/account-rekeyed
local account, api_key, former = KEYS[3], KEYS[4], KEYS[5]
local key, was = ARGV[1], ARGV[2]

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "key")
if not known[1] then return {"NO_ACCOUNT"} end
-- A repeat of the same command: the key was drawn for it alone.
if known[2] == key then return {"OK"} end
if known[2] ~= was then return {"STALE"} end
emit({account = account, api_key = api_key, former = former}, event_from(3))
return {"OK"}
