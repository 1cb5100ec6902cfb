#!lua flags=allow-oom
--[[ settle: carry a run of effects of one source log into this partition, once.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] fences         hash    horde:fences
KEYS[4] due_admission  zset    horde:due:admission
KEYS[5..] targets      hash    the account, claim, worker or name of each effect, in turn

ARGV[1] source    number of the source partition
ARGV[2] expected  the fence that the caller read, empty for none
ARGV[3] reached   the source position that the run comes to
ARGV[4] window    seconds in which a worker's dropped jobs are counted
ARGV[5] borne     drops within it that a worker may have
ARGV[6] dropped   what a worker with more of them is told, in maintenance
ARGV[7..] effects cmsgpack list of flat fields of an event, one for each target

RETURNS {"OK", carried}
REFUSES REBUILDING  a rebuild of state runs
        FENCE       the fence stands elsewhere; it comes with the answer
EVENTS  waiting-changed released unclaimed worker-aborted worker-nonconformant worker-measured worker-renamed name-freed settled
]]
-- use lib/emit
-- use apply/waiting-changed
-- use apply/released
-- use apply/unclaimed
-- use apply/worker-aborted
-- use apply/worker-nonconformant
-- use apply/worker-measured
-- use apply/worker-renamed
-- use apply/name-freed
-- use apply/settled
local fences, due_admission = KEYS[3], KEYS[4]
local source, expected, reached = ARGV[1], ARGV[2], ARGV[3]
local window, borne, dropped = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

if gated() then return {"REBUILDING"} end
local fence = call("HGET", fences, source) or ""
if fence ~= expected then return {"FENCE", fence} end

-- Whether an effect still changes something. One whose target is gone, or that was carried before, does not.
local changes = {}
changes["waiting-changed"] = function(account, e)
  local counts = ids_of(e.waiting)
  for i, stored in ipairs((admissions(account, e.requests))) do
    local waiting = admission_parts(stored)
    if waiting and waiting ~= counts[i] then return true end
  end
end
changes["released"] = function(account, e) return call("HEXISTS", account, "admission:" .. e.request_id) == 1 end
changes["unclaimed"] = function(claim, e) return call("HGET", claim, "request") == e.request_id end
changes["worker-aborted"] = function(worker) return call("EXISTS", worker) == 1 end
changes["worker-nonconformant"] = changes["worker-aborted"]
changes["worker-measured"] = changes["worker-aborted"]
changes["worker-renamed"] = function(worker, e) return call("HGET", worker, "name") ~= e.name end
changes["name-freed"] = function(worker_name, e) return call("GET", worker_name) == e.worker_id end

-- What only the target knows of an effect, as field, value, …
local adds = {}
adds["worker-measured"] = function(worker, e)
  local _, speed = newest_speeds(call("HGET", worker, "speeds") or "", e.samples)
  return {"speed", speed}
end
adds["worker-renamed"] = function(worker, e) return {"former", call("HGET", worker, "name") or e.name} end
-- A drop counts at its own time, however late it is carried here: one from another log may be of an hour before.
adds["worker-aborted"] = function(worker, e)
  local w = call("HMGET", worker, "abort_window_ms", "recent_aborts")
  local since, recent = tonumber(w[1] or "0"), tonumber(w[2] or "0")
  local at = tonumber(string.match(e.source_position, "^%d+"))
  if at - since > window * 1000 then since, recent = at, 0 end
  if since - at <= window * 1000 then recent = recent + 1 end
  return {"window_ms", text(since), "recent", text(recent), "maintenance_msg", recent > borne and dropped or ""}
end

local carried = 0
for i = 7, #ARGV do
  local target, flat = KEYS[i - 2], cmsgpack.unpack(ARGV[i])
  local e = fields_of(flat)
  if changes[e.type](target, e) then
    for _, each in ipairs(adds[e.type] and adds[e.type](target, e) or {}) do flat[#flat + 1] = each end
    emit({account = target, claim = target, worker = target, worker_name = target,
      due_admission = due_admission, fences = fences}, flat)
    carried = carried + 1
  end
end
if call("HGET", fences, source) ~= reached then
  emit({fences = fences}, {"type", "settled", "v", "1", "source", source, "source_position", reached})
end
return {"OK", text(carried)}
