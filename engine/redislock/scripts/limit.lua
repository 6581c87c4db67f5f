#!lua flags=allow-oom
-- Sets an operator's limit, and wakes the waiters that it affects.
-- KEYS: 1 lock, 2 queue, 3 details, 4 shares, 5 limits, 6 beats, 7 weights, 8 the operator's limit
-- ARGV: 1 the limit (0: none), 2 how long a place lives in ms
-- Reply: 1
local lock, queue, details, shares, limits, beats, weights, most = unpack(KEYS)
local held = redis.call('GET', lock)
local PLACE = tonumber(ARGV[2])
--include history.lua
--include prelude.lua
if ARGV[1] == '0' then redis.call('DEL', most) else redis.call('SET', most, ARGV[1]) end
purge()
for _, who in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  local ok, _, mode, limit, channel = decode(WAITER, redis.call('HGET', details, 'w' .. who))
  if ok and too_heavy(mode, limit) then tell(channel, 'w', who, '') end
end
wake()
if held == SHARED then follow_sharers() end
return 1
