#!lua
--[[ transfer: take kudos from an account for another one; the settler brings them there.

KEYS[1] events     stream  horde:events
KEYS[2] control    hash    horde:control
KEYS[3] account    hash    horde:account:<account id>, the giver's
KEYS[4] clearing   hash    horde:clearing
KEYS[5] transfers  list    horde:transfers:<account id>

ARGV[1] transfer_id  minted by the caller for this command
ARGV[2] idempotency  HMAC of the key with which its client may repeat it, empty where it has none
ARGV[3] other        the recipient's number, or its shared key
ARGV[4] recipient    the recipient's number, empty where the caller found that it may not be given anything
ARGV[5] amount       10^-4 kudos, more than 0
ARGV[6] suspect      replies too fast to be believed that keep an account that is not trusted from giving
ARGV[7] pause        seconds in which nothing goes back to an account that something came from
ARGV[8..] event      flat fields of transferred

RETURNS {"OK", position, repeated}
REFUSES REBUILDING     a rebuild of state runs
        KEY_CONFLICT   the client's key names another transfer
        NO_ACCOUNT     the giver's account is gone
        NO_RECIPIENT   the recipient may not be given anything, as the caller knows
        TOO_FAST       the recipient gave to this account a moment ago
        SUSPICIOUS     too many replies of the giver's workers came too fast to be believed
        FLAGGED        the giver is flagged
        EDUCATION      the giver has its kudos for teaching
        SHORT          the giver has not as much; what it has comes with the answer
EVENTS  transferred
]]
-- use lib/event
-- use lib/transfers
-- use apply/transferred
local account, clearing, transfers = KEYS[3], KEYS[4], KEYS[5]
local transfer_id, idempotency, other, recipient = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local amount, suspect, pause = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

if gated() then return {"REBUILDING"} end
local known = transfers_of(transfers)
-- What was done stays done, whatever became of the two since.
for _, each in ipairs(known) do
  if each.kind == "out" then
    if each.id == transfer_id then return {"OK", each.position, "1"} end
    if idempotency ~= "" and each.idempotency == idempotency then
      if each.other ~= other or each.amount ~= amount then return {"KEY_CONFLICT"} end
      return {"OK", each.position, "1"}
    end
  end
end
local a = call("HMGET", account, "name", "kudos", "floor", "held", "suspicious", "trusted", "flagged", "education")
if not a[1] then return {"NO_ACCOUNT"} end
if recipient == "" then return {"NO_RECIPIENT"} end
for _, each in ipairs(known) do
  if each.kind == "in" and each.other == recipient then
    local ms = tonumber(string.match(each.position, "^%d+"))
    if now() - ms < pause * 1000 then return {"TOO_FAST"} end
  end
end
if a[6] ~= "1" and tonumber(a[5] or "0") >= suspect then return {"SUSPICIOUS"} end
if a[7] == "1" then return {"FLAGGED"} end
if a[8] == "1" then return {"EDUCATION"} end
local available = tonumber(a[2]) - tonumber(a[3] or "0") - tonumber(a[4] or "0")
if tonumber(amount) > available then return {"SHORT", text(available)} end

return {"OK", emit({account = account, clearing = clearing, transfers = transfers}, event_from(8)), "0"}
