--[[ promoted: the owner is trusted, and what waited for that is its own. Keys: account. ]]
-- use lib/emit
apply["promoted"] = function(keys, e, position, ms)
  call("HINCRBY", keys.account, "escrow", "-" .. e.amount)
  call("HINCRBY", keys.account, "kudos", e.amount)
  call("HSET", keys.account, "trusted", "1", "trusted_ms", text(ms), "position", position)
end
