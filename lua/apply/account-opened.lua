--[[ account-opened: the account and its claims. Keys: account, accounts, and api_key unless it has none. ]]
-- use lib/emit
apply["account-opened"] = function(keys, e, position)
  call("HSET", keys.account, "name", e.name, "key", e.key, "trusted", e.trusted, "moderator", e.moderator,
    "flagged", e.flagged or "0", "kudos", e.kudos, "waiting", "0", "position", position)
  if keys.api_key then
    call("SET", keys.api_key, e.user_id)
    call("SET", keys.accounts, e.user_id)
  end
end
