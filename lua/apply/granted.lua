--[[ granted: the operator's or a moderator's kudos. Keys: account, clearing, transfers, due_recurring. ]]
-- use lib/emit
-- use lib/ledger
-- use lib/recurring
-- use lib/transfers
apply["granted"] = function(keys, e, position, ms)
  post(keys, "granted", e.amount)
  note_transfer(keys.transfers, "grant", e.grant_id, "", e.by, e.amount, position)
  if e.cause == "recurring" then
    call("HSET", keys.account, "recurred_ms", text(ms))
    set_recurring(keys, e.user_id, ms)
  end
  call("HSET", keys.account, "position", position)
end
