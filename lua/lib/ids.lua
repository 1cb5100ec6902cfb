--[[ ids_of(text): a list of ids from comma-joined text. ]]
local function ids_of(joined)
  local list = {}
  for id in string.gmatch(joined or "", "[^,]+") do list[#list + 1] = id end
  return list
end
