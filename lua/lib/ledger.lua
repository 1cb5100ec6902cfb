--[[ What scripts and applies share of the ledger. Every movement has two sides: an account, and its partition's clearing.

post(keys, cause, amount, field): so much more (or less) for the account; `field` is kudos, or escrow.
use_key(shared_key, amount): count what was spent with a shared key; less than 0 gives it back.
]]
-- use lib/call
-- use lib/emit
local function post(keys, cause, amount, field) -- luacheck: ignore 211 (not all who use the ledger post)
  if tonumber(amount) == 0 then return end
  call("HINCRBY", keys.account, field or "kudos", text(tonumber(amount)))
  call("HINCRBY", keys.clearing, cause, text(-tonumber(amount)))
end

-- An empty budget records nothing any more, and no more is given back than was recorded; -1 is one without an end.
local function use_key(shared_key, amount) -- luacheck: ignore 211
  local k = call("HMGET", shared_key, "kudos", "utilized")
  local budget = tonumber(k[1] or "0")
  amount = math.max(amount, -tonumber(k[2] or "0"))
  if budget == 0 or amount == 0 then return end  -- -0 is no integer to Redis
  call("HINCRBY", shared_key, "utilized", text(amount))
  if budget >= 0 then call("HSET", shared_key, "kudos", text(math.max(0, budget - amount))) end
end
