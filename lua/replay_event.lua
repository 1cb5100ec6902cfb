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
  apply[e.type](keys, e, position, tonumber(string.match(position, "^(%d+)-")))
  at = at + 4 + values
end
return {"OK"}
