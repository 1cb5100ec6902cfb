#!lua
--[[ open_account: a new account with its number and its API key's claim, all in one partition.

KEYS[1] events    stream  horde:events
KEYS[2] control   hash    horde:control
KEYS[3] account   hash    horde:account:<account id>
KEYS[4] clearing  hash    horde:clearing
KEYS[5] api_key   string  horde:api_key:<HMAC of the key>
KEYS[6] accounts  string  horde:accounts, the last number handed out here

ARGV[1] user_id   the number that the caller worked out
ARGV[2] last      the last number that it saw, empty for none
ARGV[3..] event   flat fields of account-opened

RETURNS {"OK", position, user_id}
REFUSES REBUILDING  a rebuild of state runs
        STALE       another account took the number
EVENTS  account-opened floored
]]
-- use lib/event
-- use lib/floor
-- use apply/account-opened
local account, clearing, api_key, accounts = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local user_id, last = ARGV[1], ARGV[2]

if gated() then return {"REBUILDING"} end
-- The key is freshly drawn for this command, so its claim can only be the command's own.
local claim = call("GET", api_key)
if claim then return {"OK", "0-0", claim} end
if (call("GET", accounts) or "") ~= last then return {"STALE"} end

local keys = {account = account, clearing = clearing, api_key = api_key, accounts = accounts}
local position = emit(keys, event_from(3, "user_id", user_id))
lift(keys, user_id)
return {"OK", position, user_id}
