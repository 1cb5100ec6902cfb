--[[ granted: the operator's or a moderator's kudos. Keys: account, clearing, transfers. ]]
-- use lib/emit
-- use lib/ledger
-- use lib/transfers
apply["granted"] = function(keys, e, position)
  post(keys, "granted", e.amount)
  note_transfer(keys.transfers, "grant", e.grant_id, "", e.by, e.amount, position)
  call("HSET", keys.account, "position", position)
end
