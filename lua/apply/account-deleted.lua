--[[ account-deleted: nobody's any more. Keys: account, api_key, passkeys, of_account,
shared_keys (list), due_recurring.

What it owns and what it holds stay with its number, for the ledger and for requests that are under way.
]]
-- use lib/emit
-- use lib/recurring
apply["account-deleted"] = function(keys, e, position, ms)
  call("DEL", keys.api_key)
  if (e.passkey or "") ~= "" then call("HDEL", keys.passkeys, e.passkey) end
  for _, shared_key in ipairs(keys.shared_keys) do call("DEL", shared_key) end
  call("DEL", keys.of_account)
  call("HDEL", keys.account, "name", "key", "passkey", "trusted", "moderator", "flagged", "service", "education",
    "patron", "special", "vpn", "customizer", "concurrency", "worker_invited", "public_workers")
  set_recurring(keys, e.user_id, ms)
  call("HSET", keys.account, "deleted_ms", text(ms), "position", position)
end
