--[[ transferred: the giver's side. Keys: account, clearing, transfers. ]]
-- use lib/emit
-- use lib/ledger
-- use lib/transfers
apply["transferred"] = function(keys, e, position)
  post(keys, "transfer", -tonumber(e.amount))
  note_transfer(keys.transfers, "out", e.transfer_id, e.idempotency, e.recipient, e.amount, position)
  call("HSET", keys.account, "position", position)
end
