--[[ set_recurring(keys, user_id, ms): when the account's monthly kudos are due next: a month after the last ones.

Keys: account, due_recurring. Without monthly kudos, or without its account, never.
]]
-- use lib/call
-- use lib/now
local MONTH_MS = 30 * 86400000

local function set_recurring(keys, user_id, ms)
  local a = call("HMGET", keys.account, "monthly_kudos", "recurred_ms", "name")
  if a[3] and tonumber(a[1] or "0") > 0 then
    local due = a[2] and tonumber(a[2]) + MONTH_MS or ms
    call("ZADD", keys.due_recurring, text(math.max(due, ms)), user_id)
  else
    call("ZREM", keys.due_recurring, user_id)
  end
end
