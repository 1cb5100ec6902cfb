#!lua
--[[ set_profile: keep what an account's owner, or a moderator, wrote of it. It is no history: it goes with the account.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3] account  hash    horde:account:<account id>
KEYS[4] profile  hash    horde:profile:<account id>  (durable) contact, admin_comment

ARGV[1..] fields  name, value, …; an empty value takes the field away

RETURNS {"OK"}
REFUSES NO_ACCOUNT  there is no such account, or it is deleted
EVENTS  (none)
]]
-- use lib/call
local account, profile = KEYS[3], KEYS[4]

if call("HEXISTS", account, "name") == 0 then return {"NO_ACCOUNT"} end
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == "" then call("HDEL", profile, ARGV[i]) else call("HSET", profile, ARGV[i], ARGV[i + 1]) end
end
return {"OK"}
