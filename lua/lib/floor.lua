--[[ lift(keys, user_id): where the account's balance is below its floor, post the difference as an event of its own.

Keys: account, clearing. Runs behind each movement, in the script that made it.
]]
-- use lib/emit
-- use apply/floored
local function lift(keys, user_id)
  local a = call("HMGET", keys.account, "kudos", "floor")
  local short = tonumber(a[2] or "0") - tonumber(a[1] or "0")
  if short > 0 then
    emit({account = keys.account, clearing = keys.clearing},
      {"type", "floored", "v", "1", "user_id", user_id, "amount", text(short)})
  end
end
