--[[ admitted: the account holds an open admission, and its operation key names the request.
Keys: account, due_admission, and claim where there is an operation key. ]]
-- use lib/emit
-- use lib/waiting
apply["admitted"] = function(keys, e, position)
  local scopes = e.scopes or ""
  call("HSET", keys.account, "admission:" .. e.request_id,
    admission(e.jobs, e.deadline_ms, e.operation_key or "", scopes), "position", position)
  count_waiting(keys.account, tonumber(e.jobs), scopes)
  call("ZADD", keys.due_admission, e.deadline_ms, e.user_id .. ":" .. e.request_id)
  if keys.claim then
    call("HSET", keys.claim, "request", e.request_id, "fingerprint", e.fingerprint, "kudos", e.kudos,
      "deadline_ms", e.deadline_ms, "position", position)
  end
end
