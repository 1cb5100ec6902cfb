--[[ rewarded: the owner's side of some generations, or of its workers' uptime. Keys: account, clearing, fences. ]]
-- use lib/emit
-- use lib/ids
-- use lib/ledger
apply["rewarded"] = function(keys, e, position)
  local total, escrowed = 0, tonumber(e.escrowed)
  for _, amount in ipairs(ids_of(e.amounts)) do total = total + amount end
  local cause = e.cause == "uptime" and "uptime" or "generation"
  post(keys, cause, total - escrowed)
  post(keys, cause, escrowed, "escrow")
  if e.suspicious ~= "0" then call("HINCRBY", keys.account, "suspicious", e.suspicious) end
  call("HSET", keys.account, "position", position)
  call("HSET", keys.fences, e.source, e.source_position)
end
