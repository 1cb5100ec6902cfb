#!lua
--[[ change_account: change what an account is called, or may do. One that is no service's any more loses its passkey; what
waited for trust is the account's own with it, however it came by it.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] account  hash    horde:account:<account id>
KEYS[4] due_recurring zset horde:due:recurring
KEYS[5] passkeys hash    horde:passkeys, the account of each HMAC

ARGV[1] user_id
ARGV[2..] event  flat fields of account-changed

RETURNS {"OK", position}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  there is no such account, or it is deleted
EVENTS  account-changed passkey-changed promoted
]]
-- use lib/event
-- use apply/account-changed
-- use apply/passkey-changed
-- use apply/promoted
local account, passkeys, user_id = KEYS[3], KEYS[5], ARGV[1]

if gated() then return {"REBUILDING"} end
if call("HEXISTS", account, "name") == 0 then return {"NO_ACCOUNT"} end
local position = emit({account = account, due_recurring = KEYS[4]}, event_from(2))
local left = call("HMGET", account, "service", "passkey", "trusted", "escrow")
if left[1] ~= "1" and (left[2] or "") ~= "" then
  emit({account = account, passkeys = passkeys},
    {"type", "passkey-changed", "v", "1", "user_id", user_id, "passkey", "", "former", left[2]})
end
if left[3] == "1" and tonumber(left[4] or "0") > 0 then
  emit({account = account}, {"type", "promoted", "v", "1", "user_id", user_id, "amount", left[4]})
end
return {"OK", position}
