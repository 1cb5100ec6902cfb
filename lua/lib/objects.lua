--[[ What a request keeps in the object store, as one word: the number of its images, and `m` where its messages are there
too. Empty: nothing. ]]
-- use lib/call
local function objects_of(e) -- luacheck: ignore 211 (not all that queue them write the word)
  local images, offloaded = e.images or "0", e.offloaded == "1"
  if images == "0" and not offloaded then return "" end
  return images .. (offloaded and "m" or "")
end

-- The request keeps these.
local function keep_objects(request, objects) -- luacheck: ignore 211 (as above)
  if objects ~= "" then call("HSET", request, "objects", objects) end
end

--[[ queue_objects(delete_retry, request_id, objects, most): all of them are to be deleted.

Returns those for which the set has no room, comma-joined.
]]
local function queue_objects(delete_retry, request_id, objects, most) -- luacheck: ignore 211 (as above)
  local images, messages = string.match(objects or "", "^(%d+)(m?)$")
  if not images then return "" end
  local names = {}
  for n = 0, images - 1 do names[#names + 1] = request_id .. "_chat_" .. n .. ".jpg" end
  if messages == "m" then names[#names + 1] = request_id .. "_chat_messages.json" end
  if call("SCARD", delete_retry) + #names > most then return table.concat(names, ",") end
  call("SADD", delete_retry, unpack(names))
  return ""
end
