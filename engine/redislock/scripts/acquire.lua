#!lua
-- One attempt. It grants the lock, or refuses and keeps the owner's place in the queue.
-- KEYS: 1 lock, 2 history, 3 gone, 4 queue, 5 details, 6 shares, 7 limits, 8 when a rest ends,
--       9 beats, 10 weights, 11 an operator's limit; 12 the mark of memory.lua, if the server must
--       be known to remember
-- ARGV: 1 owner, 2 TTL in ms, 3 mode (x, or s and the weight), 4 limit (0: none), 5 1: queue,
--       6 channel for the end of the lease and for waiters, 7 note, 8 life of the history in ms (0:
--       for ever), 9 1: refuse without a history, 10 number of the attempt, 11 channel of the
--       waiter, 12 ms the server must be known to remember (0: any), 13 last number of earlier
--       calls that may still come (else empty), 14 how long to remember that in ms, 15 number of
--       this Try, 16 1: a release may grant the lock without another Try, 17 a name for a new
--       memory, 18 the memory that was seen, 19 for how long, in ms, 20 length of a rest in ms (0:
--       there are none), 21 how long a place lives in ms
-- Reply: {1, fence, others wait} granted;
--        {2, fence, others wait, for a sharer the last fence given (0: lost)} granted before;
--        {3, the mark} the claim was released meanwhile, or another ended what it had;
--        {4} no history; {5, memory, ms} the server is known to remember for too short a time;
--        {6} too heavy; {0, first in the queue, foreign, left in ms, owner, mode, fence,
--        held in ms, note} refused
local lock, history, queue, details, shares, limits, beats, weights, most = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11]
local owner, ttl, mode, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local found = redis.call('MGET', lock, history, KEYS[3])
local held, past = found[1], found[2]
local PLACE = tonumber(ARGV[21])
--include history.lua
local last, fence, since, by, channel, note = recall(past)

-- The first sharer of a lock that nobody holds or waits for. The code below has the same effect,
-- but takes twice as long.
if not held and string.sub(mode, 1, 1) == 's' and not found[3] and ARGV[9] == '0' and ARGV[12] == '0' and ARGV[13] == '' and
  ARGV[20] == '0' and redis.call('EXISTS', queue, details, shares, limits, weights) == 0 then
  local n, weight, set = next_fence(last, us), tonumber(string.sub(mode, 2)) or 1, tonumber(redis.pcall('GET', most)) or 0
  local fits = (limit == 0 or weight <= limit) and (set <= 0 or weight <= set)
  if n and fits and redis.call('SET', lock, SHARED, 'PX', ttl, 'NX') then
    redis.call('ZADD', shares, string.format('%.0f', ms + ttl), owner)
    redis.call('PEXPIRE', shares, ttl)
    if limit > 0 and weight > 1 then
      redis.call('ZADD', limits, limit, owner, 1, HEAVY)
    elseif limit > 0 then
      redis.call('ZADD', limits, limit, owner)
    elseif weight > 1 then
      redis.call('ZADD', limits, 1, HEAVY)
    end
    if limit > 0 or weight > 1 then redis.call('PEXPIRE', limits, ttl) end
    if weight > 1 then
      redis.call('ZADD', weights, weight, owner, weight - 1, EXTRA)
      redis.call('PEXPIRE', weights, ttl)
    end
    local about = cmsgpack.pack(n, ms, limit, ARGV[6], ARGV[7])
    if wants(ARGV[6]) then
      redis.call('HSET', details, 's' .. owner, about, ASKED, '1')
    else
      redis.call('HSET', details, 's' .. owner, about)
    end
    redis.call('PEXPIRE', details, ttl)
    remember(ARGV[8], n, fence, since, by, channel, note)
    return {1, n, 0}
  end
end

--include prelude.lua
--include memory.lua
--include obstacle.lua

if ARGV[9] == '1' and last == 0 then return {4} end
if ARGV[12] ~= '0' and (not held or held == SHARED or held == owner) then
  local memory, known = remembers(KEYS[12], ARGV[18], ARGV[19], ARGV[17], us)
  if known < tonumber(ARGV[12]) then return {5, memory, known} end
end
if found[3] and found[3] ~= BARRED then keep_at_most(KEYS[3], tonumber(ARGV[14])) end
if found[3] and tonumber(found[3]) >= tonumber(ARGV[10]) then return {3, tonumber(found[3])} end
-- Calls that may still come must neither end what is granted now nor, once it has ended, grant it
-- anew.
if ARGV[13] ~= '' then
  redis.call('SET', KEYS[3], ARGV[13], 'PX', ARGV[14])
end

local function others_wait() return redis.call('EXISTS', queue) end
local n = next_fence(last, us)
local function exhausted() return redis.error_reply('FENCE is exhausted: it has reached 2^53') end

-- Notifies the holders that want to know that another waits.
local function tell_holders()
  if held and held == by then
    if wants(channel) then tell(channel, 'r', held, string.format('%.0f', fence)) end
  elseif held == SHARED and redis.call('HGET', details, ASKED) then
    local told = false
    for _, who in ipairs(redis.call('ZRANGE', shares, 0, -1)) do
      local ok, granted, _, _, listens = decode(SHARER, redis.call('HGET', details, 's' .. who))
      if ok and wants(listens) then
        told = true
        tell(listens, 'r', who, string.format('%.0f', granted))
      end
    end
    if not told then redis.call('HDEL', details, ASKED) end
  end
end

-- The owner holds the lock already: the reply was lost, or the caller restarts the lease.
if held == owner then
  redis.call('PEXPIRE', lock, ttl, 'GT') -- a late attempt must not shorten a lease that was extended since
  if by ~= owner then -- the history was lost
    if not n then return exhausted() end
    fence = n
    remember(ARGV[8], fence, fence, ms, owner, ARGV[6], ARGV[7])
  end
  return {2, fence, others_wait()}
end
purge()
if held == SHARED and redis.call('ZSCORE', shares, owner) then
  local ok, fence = decode(SHARER, redis.call('HGET', details, 's' .. owner))
  if ok then
    redis.call('ZADD', shares, 'GT', string.format('%.0f', ms + ttl), owner)
    keep(details, ttl)
    follow_sharers()
    return {2, fence, others_wait(), last}
  end
  drop_sharer(owner) -- its fence is lost, so the lease is too
  free_if_unshared()
end
if held == SHARED and redis.call('EXISTS', shares) == 0 and past then
  -- All sharers have expired in this very millisecond, and the key expires with them.
  held = redis.call('PTTL', lock) > 1 and held
  if not held then redis.call('DEL', lock) end
end

-- During a rest, only clients that know nothing of it take the lock.
local rest = tonumber(ARGV[20])
if rest > 0 and not held then
  rest = (tonumber(redis.pcall('GET', KEYS[8])) or 0) - ms
  if rest > tonumber(ARGV[20]) then rest = 0 end -- the clock was set back
else
  rest = 0
end

if too_heavy(mode, limit) then
  if leave(owner) then wake() end
  return {6}
end
local first = head(owner)
if rest <= 0 and (not first or first == owner) and fits(mode, limit) then
  if not n then return exhausted() end
  if first then leave(owner) end
  if not held then
    if not redis.call('SET', lock, mode == 'x' and owner or SHARED, 'PX', ttl, 'NX') then
      return redis.error_reply('WRONGTYPE the lock key holds no string')
    end
  end
  if mode == 'x' then
    remember(ARGV[8], n, n, ms, owner, ARGV[6], ARGV[7])
    return {1, n, others_wait()}
  end
  if not held then
    -- The key was gone, so sharers from before that have lost their leases.
    for _, who in ipairs(redis.call('ZRANGE', shares, 0, -1)) do drop_sharer(who) end
    redis.call('DEL', limits, weights)
    held = SHARED
  end
  redis.call('ZADD', shares, string.format('%.0f', ms + ttl), owner)
  if limit > 0 then redis.call('ZADD', limits, limit, owner) end
  local weight = weight_of(mode)
  if weight > 1 then weigh(owner, weight) end
  redis.call('HSET', details, 's' .. owner, cmsgpack.pack(n, ms, limit, ARGV[6], ARGV[7]))
  if wants(ARGV[6]) then redis.call('HSET', details, ASKED, '1') end
  remember(ARGV[8], n, fence, since, by, channel, note)
  local others = others_wait()
  if others == 1 then wake() end -- the next one may share
  keep(details, ttl)
  follow_sharers()
  return {1, n, others}
end

local waits = ARGV[5] == '1'
if waits then
  local began = ms
  if redis.call('ZSCORE', queue, owner) then
    local ok, _, _, _, _, first_try = decode(WAITER, redis.call('HGET', details, 'w' .. owner))
    if ok then began = first_try end
  else
    local tail = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2] or 0
    redis.call('ZADD', queue, tail + 1, owner)
    first = first or owner
    tell_holders()
  end
  redis.call('HSET', details, 'w' .. owner, cmsgpack.pack(ms + PLACE, mode, limit, ARGV[11], began, ARGV[7],
    ms, ARGV[15], ARGV[16] == '1' and ttl or 0, ARGV[6], ARGV[8]))
end
local reply = obstacle(first == owner and 1 or 0, math.max(rest, 0), fence, since, by, note)
if waits then
  keep(queue, PLACE)
  keep(details, PLACE)
end
return reply
