#!lua flags=allow-oom
--[[ settle: carry a run of effects of one source log into this partition, once.

KEYS[1] events         stream  horde:events
KEYS[2] control        hash    horde:control
KEYS[3] fences         hash    horde:fences
KEYS[4] due_admission  zset    horde:due:admission
KEYS[5] clearing       hash    horde:clearing
KEYS[6..] touched      any     the keys of each effect beside those, in turn

ARGV[1] source    number of the source partition
ARGV[2] expected  the fence that the caller read, empty for none
ARGV[3] reached   the source position that the run comes to
ARGV[4] window    seconds in which a worker's dropped jobs are counted
ARGV[5] borne     drops within it that a worker may have
ARGV[6] dropped   what a worker with more of them is told, in maintenance
ARGV[7] trust     10^-4 kudos in escrow beyond which an owner earns trust; empty: nobody does
ARGV[8] probation seconds that an account exists before it may
ARGV[9] suspect   replies too fast to be believed that keep it from that
ARGV[10..] effects cmsgpack list of the roles of an effect's keys, comma-joined, and the flat fields of its event

RETURNS {"OK", carried}
REFUSES REBUILDING  a rebuild of state runs
        FENCE       the fence stands elsewhere; it comes with the answer
EVENTS  waiting-changed released unclaimed charged rewarded received promoted floored worker-aborted worker-nonconformant worker-measured worker-renamed name-freed settled
]]
-- use lib/emit
-- use lib/floor
-- use apply/waiting-changed
-- use apply/released
-- use apply/unclaimed
-- use apply/charged
-- use apply/rewarded
-- use apply/received
-- use apply/promoted
-- use apply/worker-aborted
-- use apply/worker-nonconformant
-- use apply/worker-measured
-- use apply/worker-renamed
-- use apply/name-freed
-- use apply/settled
local fences, due_admission, clearing = KEYS[3], KEYS[4], KEYS[5]
local source, expected, reached = ARGV[1], ARGV[2], ARGV[3]
local window, borne, dropped = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local trust, probation, suspect = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

if gated() then return {"REBUILDING"} end
local fence = call("HGET", fences, source) or ""
if fence ~= expected then return {"FENCE", fence} end

-- Whether an effect still changes something. One whose target is gone, or that was carried before, does not.
local changes = {}
changes["waiting-changed"] = function(keys, e)
  local counts = ids_of(e.waiting)
  for i, stored in ipairs((admissions(keys.account, e.requests))) do
    local waiting = admission_parts(stored)
    if waiting and waiting ~= counts[i] then return true end
  end
end
changes["released"] = function(keys, e) return call("HEXISTS", keys.account, "admission:" .. e.request_id) == 1 end
changes["unclaimed"] = function(keys, e) return call("HGET", keys.claim, "request") == e.request_id end
-- An account that is deleted still owns and owes; one that never was does not.
changes["charged"] = function(keys) return call("EXISTS", keys.account) == 1 end
changes["rewarded"] = changes["charged"]
changes["received"] = changes["charged"]
changes["worker-aborted"] = function(keys) return call("EXISTS", keys.worker) == 1 end
changes["worker-nonconformant"] = changes["worker-aborted"]
changes["worker-measured"] = changes["worker-aborted"]
changes["worker-renamed"] = function(keys, e) return call("HGET", keys.worker, "name") ~= e.name end
changes["name-freed"] = function(keys, e) return call("GET", keys.worker_name) == e.worker_id end

-- What only the target knows of an effect, as field, value, …
local adds = {}
adds["released"] = function(keys, e)
  local _, _, _, _, _, refundable = admission_parts(call("HGET", keys.account, "admission:" .. e.request_id))
  return {"refunded", e.refund == "1" and refundable or "0"}
end
adds["rewarded"] = function(keys, e)
  local escrowed = 0
  if call("HGET", keys.account, "trusted") ~= "1" then
    for _, each in ipairs(ids_of(e.escrows)) do escrowed = escrowed + each end
  end
  return {"escrowed", text(escrowed)}
end
adds["worker-measured"] = function(keys, e)
  local _, speed = newest_speeds(call("HGET", keys.worker, "speeds") or "", e.samples)
  return {"speed", speed}
end
adds["worker-renamed"] = function(keys, e) return {"former", call("HGET", keys.worker, "name") or e.name} end
-- A drop counts at its own time, however late it is carried here: one from another log may be of an hour before.
adds["worker-aborted"] = function(keys, e)
  local w = call("HMGET", keys.worker, "abort_window_ms", "recent_aborts")
  local since, recent = tonumber(w[1] or "0"), tonumber(w[2] or "0")
  local at = tonumber(string.match(e.source_position, "^%d+"))
  if at - since > window * 1000 then since, recent = at, 0 end
  if since - at <= window * 1000 then recent = recent + 1 end
  return {"window_ms", text(since), "recent", text(recent), "maintenance_msg", recent > borne and dropped or ""}
end

-- What an effect brings about here, as facts of their own.
local follows = {}
follows["charged"] = function(keys, e) lift(keys, e.user_id) end
follows["received"] = follows["charged"]
follows["released"] = function(keys, e) if e.refund == "1" then lift(keys, e.user_id) end end
follows["rewarded"] = function(keys, e)
  local a = call("HMGET", keys.account, "trusted", "escrow", "created_ms", "suspicious", "name")
  local earned = trust and a[5] and a[1] ~= "1" and tonumber(a[2] or "0") > trust
    and now() - tonumber(a[3] or "0") >= probation * 1000 and tonumber(a[4] or "0") < suspect
  if earned then
    emit({account = keys.account}, {"type", "promoted", "v", "1", "user_id", e.user_id, "amount", a[2]})
  end
  lift(keys, e.user_id)
end

local carried, next_key = 0, 6
for i = 10, #ARGV do
  local flat = cmsgpack.unpack(ARGV[i])
  local keys = {fences = fences, due_admission = due_admission, clearing = clearing}
  for _, role in ipairs(ids_of(table.remove(flat, 1))) do
    keys[role] = KEYS[next_key]
    next_key = next_key + 1
  end
  local e = fields_of(flat)
  if changes[e.type](keys, e) then
    for _, each in ipairs(adds[e.type] and adds[e.type](keys, e) or {}) do flat[#flat + 1] = each end
    emit(keys, flat)
    if follows[e.type] then follows[e.type](keys, e) end
    carried = carried + 1
  end
end
if call("HGET", fences, source) ~= reached then
  emit({fences = fences}, {"type", "settled", "v", "1", "source", source, "source_position", reached})
end
return {"OK", text(carried)}
