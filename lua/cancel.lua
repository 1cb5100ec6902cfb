#!lua flags=allow-oom
--[[ cancel: hand out no more jobs of a request; end and settle the in-flight ones of a streamed request.

In maintenance only what waits is cancelled: jobs in flight may be finished, streamed ones too.

KEYS[1] events     stream  horde:events
KEYS[2] control    hash    horde:control
KEYS[3] request    hash    horde:request:<request id>
KEYS[4] stream     stream  horde:chat:stream:<request id>     (ephemeral)
KEYS[5] due_lease  zset    horde:due:lease
KEYS[6..] generations  hash, hash  horde:generation:<id>, horde:chat:lease:<id> of each generation, in turn; then
                         horde:decoy:<id> and lease of each decoy, likewise

ARGV[1] generations  the ids that the caller read, comma-joined
ARGV[2] stream_ttl   seconds
ARGV[3] cause        client or maintenance
ARGV[4..] event      flat fields of cancelled

RETURNS {"OK", position, finished, done, changed}
REFUSES REBUILDING  a rebuild of state runs
        NOT_FOUND   no such request
        STALE       it has other generations than the caller read
EVENTS  cancelled
]]
-- use lib/event
-- use lib/ids
-- use lib/ended
-- use apply/cancelled
local request, stream, due_lease = KEYS[3], KEYS[4], KEYS[5]
local generations, stream_ttl, in_maintenance = ARGV[1], ARGV[2], ARGV[3] == "maintenance"

if gated() then return {"REBUILDING"} end
local r = call("HMGET", request, "state", "cancelled", "generations", "stream", "processing", "finished", "user",
  "position", "waiting", "max_length", "shared_key")
if not r[1] or r[1] == "abandoned" then return {"NOT_FOUND"} end
if r[1] == "done" or r[2] == "1" or (in_maintenance and tonumber(r[9]) == 0) then
  return {"OK", r[8], r[6], r[1] == "done" and "1" or "0", "0"}
end
if r[3] ~= generations then return {"STALE"} end

local settled, characters, elapsed, hashes, leases = {}, {}, {}, {}, {}
if r[4] == "1" and not in_maintenance then
  for i, generation_id in ipairs(ids_of(generations)) do
    local generation, lease = KEYS[4 + 2 * i], KEYS[5 + 2 * i]
    local g = call("HMGET", generation, "state", "assigned_ms")
    if g[1] == "pending" then
      local posted = call("HMGET", lease, "characters", "bytes")
      settled[#settled + 1] = generation_id
      characters[#characters + 1] = posted[1] or posted[2] or "0"
      elapsed[#elapsed + 1] = text(math.max(1, now() - tonumber(g[2])))
      hashes[#hashes + 1] = generation
      leases[#leases + 1] = lease
    end
  end
end
local done = tonumber(r[5]) == #settled
local position = emit({request = request, settled = hashes, due_lease = due_lease},
  event_from(4, "user_id", r[7], "settled", table.concat(settled, ","), "characters", table.concat(characters, ","),
    "finished", r[6], "done", done and "1" or "0", "max_length", r[10], "shared_key", r[11] or "",
    "elapsed_ms", table.concat(elapsed, ",")))
for i, generation_id in ipairs(settled) do mark_ended(stream, leases[i], generation_id, stream_ttl, true) end
if r[4] == "1" and not in_maintenance then
  for i = 6 + 2 * #ids_of(generations), #KEYS, 2 do
    local decoy, lease = KEYS[i], KEYS[i + 1]
    if call("HGET", decoy, "state") == "pending" then call("HSET", decoy, "state", "faulted") end
    if call("EXISTS", lease) == 1 then call("HSET", lease, "cancelled", "1") end
  end
end
return {"OK", position, r[6], done and "1" or "0", "1"}
