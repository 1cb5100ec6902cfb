--[[ admitted: the account holds an open admission, and its operation key names the request. Its tax is charged.
Keys: account, clearing, due_admission, claim where there is an operation key, and shared_key where it names one. ]]
-- use lib/emit
-- use lib/ledger
-- use lib/objects
-- use lib/waiting
apply["admitted"] = function(keys, e, position)
  local scopes, tax, shared_key = e.scopes or "", e.tax or "0", e.shared_key or ""
  local refundable = e.refundable or tax
  call("HSET", keys.account, "admission:" .. e.request_id,
    admission(e.jobs, e.deadline_ms, e.operation_key or "", scopes, e.hold or "0", refundable, shared_key,
      objects_of(e)),
    "position", position)
  count_waiting(keys.account, tonumber(e.jobs), scopes)
  hold(keys.account, tonumber(e.hold or "0"), shared_key)
  post(keys, "tax", -tonumber(tax))
  if keys.shared_key and call("EXISTS", keys.shared_key) == 1 then use_key(keys.shared_key, tonumber(tax)) end
  call("ZADD", keys.due_admission, e.deadline_ms, e.user_id .. ":" .. e.request_id)
  if keys.claim then
    call("HSET", keys.claim, "request", e.request_id, "fingerprint", e.fingerprint, "kudos", e.kudos,
      "deadline_ms", e.deadline_ms, "position", position)
  end
end
