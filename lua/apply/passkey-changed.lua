--[[ passkey-changed: with what the account's proxies name their clients. Keys: account, passkeys. ]]
-- use lib/emit
apply["passkey-changed"] = function(keys, e, position)
  if e.former ~= "" then call("HDEL", keys.passkeys, e.former) end
  if e.passkey ~= "" then call("HSET", keys.passkeys, e.passkey, e.user_id) end
  call("HSET", keys.account, "passkey", e.passkey, "position", position)
end
