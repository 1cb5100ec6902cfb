--[[ shared-key-opened: so much may be spent with it. Keys: shared_key, of_account. ]]
-- use lib/emit
apply["shared-key-opened"] = function(keys, e, position)
  call("HSET", keys.shared_key, "user", e.user_id, "name", e.name, "kudos", e.kudos, "utilized", "0",
    "expiry_ms", e.expiry_ms, "max_text_tokens", e.max_text_tokens, "max_image_pixels", e.max_image_pixels,
    "max_image_steps", e.max_image_steps, "position", position)
  call("SADD", keys.of_account, e.shared_key)
end
