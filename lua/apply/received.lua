--[[ received: the other side of a transfer. Keys: account, clearing, transfers, fences, and shared_key where it names one.

A shared key without an end has nothing to grow; one that is gone is passed over.
]]
-- use lib/emit
-- use lib/ledger
-- use lib/transfers
apply["received"] = function(keys, e, position)
  post(keys, "transfer", e.amount)
  note_transfer(keys.transfers, "in", e.transfer_id, "", e.sender, e.amount, position)
  if keys.shared_key then
    local budget = tonumber(call("HGET", keys.shared_key, "kudos") or "-1")
    if budget >= 0 then call("HINCRBY", keys.shared_key, "kudos", e.amount) end
  end
  call("HSET", keys.account, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
