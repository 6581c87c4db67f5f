#!lua flags=allow-oom
-- Restarts many exclusive leases, as renew.lua does, and shortens none. It leaves their
-- histories alone.
-- KEYS: for each lease lock
-- ARGV: for each lease owner, TTL in ms
-- Reply: for each lease 1: renewed; 0: lost; -1: ask renew.lua, which knows more
local replies = {}
for i = 1, #KEYS do
  local held = redis.pcall('GET', KEYS[i]) -- a damaged one must not fail the others
  if held == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2 * i], 'GT')
    replies[i] = 1
  else
    replies[i] = held and -1 or 0
  end
end
return replies
