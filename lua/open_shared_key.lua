#!lua
--[[ open_shared_key: let an account's kudos be spent with another key, too.

KEYS[1] events      stream  horde:events
KEYS[2] control     hash    horde:control
KEYS[3] account     hash    horde:account:<account id>
KEYS[4] shared_key  hash    horde:shared_key:<id>
KEYS[5] of_account  set     horde:shared_keys:<account id>

ARGV[1] most       keys of an account, like the next two
ARGV[2] trusted    of a trusted one
ARGV[3] education  of one of education
ARGV[4..] event    flat fields of shared-key-opened

RETURNS {"OK"}
REFUSES REBUILDING  a rebuild of state runs
        NO_ACCOUNT  the account is gone
        TOO_MANY    it has as many as it may have; that number comes with the answer
EVENTS  shared-key-opened
]]
-- use lib/event
-- use apply/shared-key-opened
local account, shared_key, of_account = KEYS[3], KEYS[4], KEYS[5]
local most, trusted, education = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

if gated() then return {"REBUILDING"} end
local known = call("HMGET", account, "name", "trusted", "education")
if not known[1] then return {"NO_ACCOUNT"} end
-- A repeat of the same command: the id was minted for it alone.
if call("EXISTS", shared_key) == 1 then return {"OK"} end
if known[2] == "1" then most = trusted end
if known[3] == "1" then most = education end
if call("SCARD", of_account) >= most then return {"TOO_MANY", text(most)} end
emit({shared_key = shared_key, of_account = of_account}, event_from(4))
return {"OK"}
