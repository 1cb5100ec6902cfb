#!lua
--[[ replay_event: fold a run of events that are in a log already, by the code that made its state. Appends nothing.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3..] roles  any     the keys that each event's apply touches, event after event

ARGV[1..] run    of each event: the names of its keys in order, comma-joined (one named twice is a list); which of these
                 are lists, comma-joined; position; how many values come next; its flat fields as stored

RETURNS {"OK"}
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/emit
-- use lib/ids
-- use apply/*

-- Whose beginning these need. Where that was lost with a stretch of the log they have nothing to tell: neither their
-- request nor their job will ever come, and what is left of it would be neither whole nor ever end.
local needed = {assigned = "request", cancelled = "request", returned = "request", progressed = "generation",
  refused = "generation", faulted = "generation", ["submitted-reply"] = "generation"}

local key, at = 3, 1
local parsed = {} -- many events of a run name the same roles
while at <= #ARGV do
  local roles, lists, position, values = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  parsed[roles] = parsed[roles] or ids_of(roles)
  local keys = {}
  if lists ~= "" then
    for _, role in ipairs(ids_of(lists)) do keys[role] = {} end
  end
  for _, role in ipairs(parsed[roles]) do
    if type(keys[role]) == "table" then table.insert(keys[role], KEYS[key]) else keys[role] = KEYS[key] end
    key = key + 1
  end
  local e = {}
  for i = at + 4, at + 3 + values, 2 do e[ARGV[i]] = ARGV[i + 1] end
  local needs = needed[e.type]
  if not needs or call("EXISTS", keys[needs]) == 1 then
    apply[e.type](keys, e, position, tonumber(string.match(position, "^(%d+)-")))
  end
  at = at + 4 + values
end
return {"OK"}
