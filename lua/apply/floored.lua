--[[ floored: the balance is lifted to its floor. Keys: account, clearing. ]]
-- use lib/emit
-- use lib/ledger
apply["floored"] = function(keys, e, position)
  post(keys, "floor", e.amount)
  call("HSET", keys.account, "position", position)
end
