#!lua
--[[ set_passkey: give a service account another passkey for its proxies, or none. The former one is nobody's from now on.

KEYS[1] events    stream  horde:events
KEYS[2] control   hash    horde:control
KEYS[3] account   hash    horde:account:<account id>
KEYS[4] passkeys  hash    horde:passkeys, the account of each HMAC

ARGV[1] passkey  HMAC of the new one, empty for none
ARGV[2] was      HMAC of the one that its caller saw, empty for none
ARGV[3..] event  flat fields of passkey-changed

RETURNS {"OK"}
REFUSES REBUILDING   a rebuild of state runs
        NO_ACCOUNT   there is no such account, or it is deleted
        NO_SERVICE   the account is none of a service, and only those have passkeys
        STALE        it has another one by now
EVENTS  passkey-changed
]]
-- use lib/event
-- use apply/passkey-changed
local account, passkeys = KEYS[3], KEYS[4]
local passkey, was = ARGV[1], ARGV[2]

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "passkey", "service")
if not known[1] then return {"NO_ACCOUNT"} end
local has = known[2] or ""
if has == passkey then return {"OK"} end
if passkey ~= "" and known[3] ~= "1" then return {"NO_SERVICE"} end
if has ~= was then return {"STALE"} end
emit({account = account, passkeys = passkeys}, event_from(3))
return {"OK"}
