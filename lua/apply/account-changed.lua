--[[ account-changed: what the account is called, or may do, from now on. Keys: account, due_recurring.

Trust is dated: a worker that was paused before it is not paused any more.
]]
-- use lib/emit
-- use lib/ids
-- use lib/recurring
apply["account-changed"] = function(keys, e, position, ms)
  local has = {}
  for _, role in ipairs(ids_of(e.roles)) do has[role] = true end
  for _, what in ipairs(ids_of(e.changed)) do
    local value = e[what] or (has[what] and "1" or "0")
    if what == "trusted" and value == "1" then call("HSET", keys.account, "trusted_ms", text(ms)) end
    call("HSET", keys.account, what, value)
  end
  set_recurring(keys, e.user_id, ms)
  call("HSET", keys.account, "position", position)
end
