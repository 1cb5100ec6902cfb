#!lua
--[[ open_anonymous: the account of everyone who has none. Its key is public, so it needs no claim.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] account  hash    horde:account:0
KEYS[4] clearing hash    horde:clearing

ARGV[1..] event  flat fields of account-opened

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
EVENTS  account-opened
]]
-- use lib/event
-- use apply/account-opened
local account = KEYS[3]

if gated() then return {"REBUILDING"} end
if call("EXISTS", account) == 0 then
  emit({account = account, clearing = KEYS[4]}, event_from(1, "user_id", "0"))
end
return {"OK"}
