#!lua
--[[ replay_event: fold one event that is in a log already, by the code that made its state. Appends nothing.

KEYS[1] events   stream  horde:events
KEYS[2] control  hash    horde:control
KEYS[3..] roles  any     the keys that the event's apply touches

ARGV[1] roles     names of KEYS[3..] in order, comma-joined; a role named twice is a list
ARGV[2] lists     names of the roles that are lists, comma-joined
ARGV[3] position
ARGV[4..] event   flat fields as stored

RETURNS {"OK"}
REFUSES (nothing)
EVENTS  (none)
]]
-- use lib/emit
-- use lib/ids
-- use apply/*
local roles, lists, position = ids_of(ARGV[1]), ids_of(ARGV[2]), ARGV[3]

local keys = {}
for _, role in ipairs(lists) do keys[role] = {} end
for i, role in ipairs(roles) do
  local key = KEYS[i + 2]
  if type(keys[role]) == "table" then table.insert(keys[role], key) else keys[role] = key end
end
local e = fields_of({unpack(ARGV, 4)})
apply[e.type](keys, e, position, tonumber(string.match(position, "^(%d+)-")))
return {"OK"}
