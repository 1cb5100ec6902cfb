--[[ count_waiting(account, delta, scopes): so many more (or fewer) jobs of the account wait.

`scopes` are the digests, comma-joined, of the models that an anonymous request names: each has a counter of its own.
]]
-- use lib/call
-- use lib/ids
-- use lib/now
local function count_scopes(account, delta, scopes)
  if delta == 0 or scopes == "" then return end
  for _, scope in ipairs(ids_of(scopes)) do
    if call("HINCRBY", account, "scope:" .. scope, text(delta)) == 0 then call("HDEL", account, "scope:" .. scope) end
  end
end

local function count_waiting(account, delta, scopes)
  if delta ~= 0 then call("HINCRBY", account, "waiting", text(delta)) end
  count_scopes(account, delta, scopes)
end

-- What the account keeps of an admission:
-- `<waiting jobs>:<deadline>:<operation key>:<scopes>:<what it still holds>:<what of its tax may be given back>:<shared key>`,
-- and behind it `:<objects>` (lib/objects) where it stores any.
local function admission(waiting, deadline_ms, operation_key, scopes, held, refundable, shared_key, objects)
  local parts = {waiting, deadline_ms, operation_key, scopes, held, refundable, shared_key}
  if objects ~= "" then parts[8] = objects end
  return table.concat(parts, ":")
end

-- Its parts again, as text; nil where there is no such admission.
local function admission_parts(stored)
  return string.match(stored or "", "^(%d+):(%d+):([^:]*):([^:]*):(%d+):(%d+):([^:]*):?([^:]*)$")
end

-- The admissions of some requests as the account has them (false: none), and the names of their fields.
local function admissions(account, requests) -- luacheck: ignore 211 (only the settler changes several)
  local fields = ids_of(requests)
  for i, request_id in ipairs(fields) do fields[i] = "admission:" .. request_id end
  return call("HMGET", account, unpack(fields)), fields
end

-- So much more (or less) of the account's kudos is held, and of what a shared key may spend.
local function hold(account, delta, shared_key) -- luacheck: ignore 211 (not all hold)
  if delta == 0 then return end
  call("HINCRBY", account, "held", text(delta))
  if shared_key ~= "" and call("HINCRBY", account, "held:" .. shared_key, text(delta)) == 0 then
    call("HDEL", account, "held:" .. shared_key)
  end
end
