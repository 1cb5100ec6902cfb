--[[ account-opened: the account and its claims. Keys: account, clearing, accounts, and api_key unless it has none. ]]
-- use lib/emit
-- use lib/ids
-- use lib/ledger
apply["account-opened"] = function(keys, e, position, ms)
  call("HSET", keys.account, "name", e.name, "key", e.key, "trusted", e.trusted, "moderator", e.moderator,
    "flagged", e.flagged or "0", "kudos", "0", "waiting", "0", "kind", e.kind or "registered", "floor", e.floor or "0",
    "concurrency", e.concurrency or "0", "created_ms", text(ms), "position", position)
  for _, role in ipairs(ids_of(e.roles)) do call("HSET", keys.account, role, "1") end
  post(keys, "opened", e.kudos)
  if keys.api_key then
    call("SET", keys.api_key, e.user_id)
    call("SET", keys.accounts, e.user_id)
  end
end
