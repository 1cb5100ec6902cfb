--[[ newest_speeds(stored, added): a worker's newest samples, comma-joined, and their average. 10^-3 tokens a second. ]]
-- use lib/ids
-- use lib/now
local SPEED_SAMPLES = 20

local function newest_speeds(stored, added)
  local samples = ids_of(stored)
  for _, sample in ipairs(ids_of(added)) do samples[#samples + 1] = sample end
  local first = math.max(1, #samples - SPEED_SAMPLES + 1)
  local total = 0
  for i = first, #samples do total = total + samples[i] end
  return table.concat(samples, ",", first), text(math.floor(total / (#samples - first + 1) + 0.5))
end
