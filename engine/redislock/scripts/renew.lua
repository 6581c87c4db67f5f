#!lua flags=allow-oom
-- Restarts a lease of any kind, and brings its history up to date. It never revives a lease that
-- has ended.
-- KEYS: 1 lock, 2 history, 3 details, 4 shares, 5 limits, 6 weights; 7 queue, if the holder wants
--       to know whether others wait
-- ARGV: 1 owner, 2 TTL in ms, 3 channel, 4 note, 5 fence if known (else 0), 6 life of the history
--       in ms (0: for ever), 7 when the lease ends, in ms of the server's clock, if it may be
--       shortened (else 0): with another end, it was renewed since and is not
-- Reply: {fence, when it ends if that is later than asked (else 0), others wait}; {0} lost
local lock, history, details, shares, limits, weights = unpack(KEYS, 1, 6)
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local held = redis.call('GET', lock)
local known, ends = tonumber(ARGV[7]), 0
local others = KEYS[7] and redis.call('EXISTS', KEYS[7]) or 0
--include history.lua
local past = redis.pcall('GET', history) -- a damaged history must not end the lease
local last, fence, since, by, channel, note = recall(past)
if last > 0 and ARGV[6] ~= '0' and (held == owner or held == SHARED) then
  redis.call('PEXPIRE', history, life_of(last, ARGV[6]), 'XX')
end
if held == owner then
  if known > 0 and redis.call('PEXPIRETIME', lock) == known then
    redis.call('PEXPIRE', lock, ttl)
  elseif redis.call('PEXPIRE', lock, ttl, 'GT') == 0 and redis.call('PTTL', lock) > ttl then
    ends = tonumber(redis.pcall('PEXPIRETIME', lock)) or 0 -- a user without permission keeps the longer lease
  end
  if by == owner and (channel == ARGV[3] or ARGV[3] == '') then return {fence, ends, others} end
  if by ~= owner then -- the history was lost, but the holder may know its fence
    fence, since, note = tonumber(ARGV[5]), ms, ARGV[4]
    if fence == 0 then fence = math.max(last + 1, us) end
    last = math.max(last, fence)
  end
  remember(ARGV[6], last, fence, since, owner, ARGV[3], note)
  return {fence, ends, others}
end
if not held then return {0} end

local queue, beats, most, PLACE = '', '', '', 0 -- the prelude needs the names
--include prelude.lua
if held ~= SHARED then return {0} end
purge()
local before = tonumber(redis.call('ZSCORE', shares, owner) or nil)
if not before then return {0} end
local ok, n, granted, limit, told, text = decode(SHARER, redis.call('HGET', details, 's' .. owner))
if not ok then return {0} end
if before > ms + ttl and before ~= known then
  ends = before
else
  redis.call('ZADD', shares, string.format('%.0f', ms + ttl), owner)
end
if told ~= ARGV[3] and ARGV[3] ~= '' then
  redis.call('HSET', details, 's' .. owner, cmsgpack.pack(n, granted, limit, ARGV[3], text))
  if wants(ARGV[3]) then redis.call('HSET', details, ASKED, '1') end
end
keep(details, ttl)
follow_sharers()
return {n, ends, others}
