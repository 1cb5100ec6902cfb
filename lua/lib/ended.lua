--[[ mark_ended(stream, lease, generation_id, stream_ttl, keep): tell readers of the progress stream that a generation ended.

Only where a stream lease exists: a job without one never posted. `keep` leaves the lease, flagged, so that the worker's
next post learns of the cancel.
]]
-- use lib/call
local function mark_ended(stream, lease, generation_id, stream_ttl, keep)
  if call("EXISTS", lease) == 0 then return end
  call("XADD", stream, "*", "gen", generation_id, "ended", "1")
  call("EXPIRE", stream, stream_ttl)
  if keep then call("HSET", lease, "cancelled", "1") else call("DEL", lease) end
end
