--[[ call(command, key, ...): redis.call that refuses an undeclared key under the test setting.

Redis itself accepts undeclared keys unless they hash to another slot, so only the test setting finds them.
]]
local declared_keys
if TEST then
  declared_keys = {}
  for _, key in ipairs(KEYS) do declared_keys[key] = true end
end

local function call(command, key, ...)
  if TEST and not declared_keys[key] then
    error("undeclared key " .. tostring(key) .. " in " .. command)
  end
  return redis.call(command, key, ...)
end
