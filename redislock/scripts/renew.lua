#!lua flags=allow-oom
-- Restarts a lease. It never revives one that has ended, and shortens one only when told
-- to: a late renewal would otherwise undo a longer one that was answered.
-- KEYS: 1 lock, 2 history, 3 details, 4 shares, 5 limits
-- ARGV: 1 owner, 2 TTL in ms, 3 channel, 4 note, 5 fence if known (else 0),
--       6 life of the history in ms (0: for ever), 7 1: the TTL may be shorter than before
-- Reply: fence; 0: lost
local lock, history, details, shares, limits = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local held = redis.call('GET', lock)
--include history.lua
if held == owner then
  if ARGV[7] == '1' then
    redis.call('PEXPIRE', lock, ttl)
  else
    redis.call('PEXPIRE', lock, ttl, 'GT')
  end
  local past
  if ARGV[6] == '0' then
    past = redis.call('GET', history)
  else
    past = redis.call('GETEX', history, 'PX', ARGV[6])
  end
  local last, fence, since, by, channel, note = recall(past)
  if by == owner and (channel == ARGV[3] or ARGV[3] == '') then return fence end
  local clock = redis.call('TIME')
  if by ~= owner then -- the history was lost: the holder may still know its fence
    local us = clock[1] * 1000000 + clock[2]
    fence, since, note = tonumber(ARGV[5]), math.floor(us / 1000), ARGV[4]
    if fence == 0 then fence = math.max(last + 1, us) end
    last = math.max(last, fence)
  end
  remember(ARGV[6], last, fence, since, owner, ARGV[3], note)
  return fence
end
if not held then return 0 end

local clock = redis.call('TIME')
local ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
local queue = ''
--include prelude.lua
if held ~= SHARED then return 0 end
purge()
local mine = redis.call('ZSCORE', shares, owner) and redis.call('HGET', details, 's' .. owner)
if not mine then return 0 end
redis.call('ZADD', shares, ARGV[7] == '1' and 'XX' or 'GT', string.format('%.0f', ms + ttl), owner)
follow_sharers()
keep(details, ttl)
if ARGV[6] ~= '0' then redis.call('PEXPIRE', history, ARGV[6]) end
local fence, granted, limit, channel, note = cmsgpack.unpack(mine)
if channel ~= ARGV[3] and ARGV[3] ~= '' then
  redis.call('HSET', details, 's' .. owner, cmsgpack.pack(fence, granted, limit, ARGV[3], note))
end
return fence
