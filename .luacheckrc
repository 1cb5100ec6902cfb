-- For the expanded scripts in build/lua (`make lua`): one file is then all that Redis sees.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "KEYS", "ARGV" }
max_line_length = false -- a library is pasted in with its comments; its own file is read by people
