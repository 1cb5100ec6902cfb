--[[ transport_of(objects, images, messages): how a worker gets a request's images or its messages (spec, Messages offload).

objects   what the request keeps in the object store (lib/objects)
images    what the worker declared for images: url, base64, or empty
messages  what it declared for messages that are stored: messages_url, or empty

Empty: all of them inline. nil: it cannot get them, for messages_url alone lets no worker have images.
]]
local function transport_of(objects, images, messages)
  local count, stored = string.match(objects or "", "^(%d+)(m?)$")
  if not count then return "" end
  if count ~= "0" and images == "" then return nil end
  if stored == "m" and messages ~= "" then return messages end
  return count ~= "0" and images or ""
end
