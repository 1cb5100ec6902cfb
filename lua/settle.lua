#!lua flags=allow-oom
--[[ settle: carry a run of effects of one source log into this partition, once.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] fences         hash    horde:fences
KEYS[4] due_admission  zset    horde:due:admission
KEYS[5..] targets      hash    the account or worker of each effect, in turn

ARGV[1] source    number of the source partition
ARGV[2] expected  the fence that the caller read, empty for none
ARGV[3] reached   the source position that the run comes to
ARGV[4..] effects cmsgpack list of flat fields of released or worker-aborted, one for each target

RETURNS {"OK", carried}
REFUSES REBUILDING  a rebuild of state runs
        FENCE       the fence stands elsewhere; it comes with the answer
EVENTS  released worker-aborted settled
]]
-- use lib/emit
-- use apply/released
-- use apply/worker-aborted
-- use apply/settled
local fences, due_admission = KEYS[3], KEYS[4]
local source, expected, reached = ARGV[1], ARGV[2], ARGV[3]

if gated() then return {"REBUILDING"} end
local fence = call("HGET", fences, source) or ""
if fence ~= expected then return {"FENCE", fence} end

local carried = 0
for i = 4, #ARGV do
  local target, flat = KEYS[i + 1], cmsgpack.unpack(ARGV[i])
  local e = fields_of(flat)
  -- An effect whose target is gone, or that was carried before, is passed over; the fence moves all the same.
  if e.type == "released" and call("HEXISTS", target, "admission:" .. e.request_id) == 1 then
    emit({account = target, due_admission = due_admission, fences = fences}, flat)
    carried = carried + 1
  elseif e.type == "worker-aborted" and call("EXISTS", target) == 1 then
    emit({worker = target, fences = fences}, flat)
    carried = carried + 1
  end
end
if call("HGET", fences, source) ~= reached then
  emit({fences = fences}, {"type", "settled", "v", "1", "source", source, "source_position", reached})
end
return {"OK", text(carried)}
