--[[ transferred: the giver's side. Keys: account, clearing, transfers. ]]
-- use lib/emit
-- use lib/ledger
-- use lib/transfers
apply["transferred"] = function(keys, e, position)
  post(keys, "transfer", -tonumber(e.amount))
  local other = e.shared_key ~= "" and e.shared_key or e.recipient
  note_transfer(keys.transfers, "out", e.transfer_id, e.idempotency, other, e.amount, position)
  call("HSET", keys.account, "position", position)
end
