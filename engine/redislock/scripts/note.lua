#!lua flags=allow-oom
-- Replaces the note of a lease.
-- KEYS: 1 lock, 2 history, 3 details, 4 shares, 5 noted
-- ARGV: 1 owner, 2 note, 3 id of the claim, 4 number of the call, 5 how long to remember it in ms,
--       because earlier calls may still come (0: none may)
-- Reply: 1; 0: lost
local lock, history, details, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, note = ARGV[1], ARGV[2]
--include history.lua
local by, last = string.match(tostring(redis.pcall('GET', KEYS[5])), '^(%x+) (%d+)$')
if by == ARGV[3] and tonumber(last) >= tonumber(ARGV[4]) then return 1 end -- it comes late
if ARGV[5] ~= '0' then redis.call('SET', KEYS[5], ARGV[3] .. ' ' .. ARGV[4], 'PX', ARGV[5]) end
local held = redis.call('GET', lock)
if held == owner then
  local past = redis.call('GET', history)
  if past then -- else nothing is known of the holder until it renews
    local last, fence, since, by, channel = recall(past)
    if by == owner then remember('', last, fence, since, by, channel, note) end
  end
  return 1
end
if held ~= SHARED then return 0 end
local ends = tonumber(redis.call('ZSCORE', shares, owner))
local ok, fence, granted, limit, channel = decode(SHARER, redis.call('HGET', details, 's' .. owner))
if not ok or not ends or ends < ms then return 0 end
redis.call('HSET', details, 's' .. owner, cmsgpack.pack(fence, granted, limit, channel, note))
return 1
