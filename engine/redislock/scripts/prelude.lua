-- Shared by the other scripts, which include it after their fast path.
-- It uses: held (the value at the lock key or false), ms (the server's time), the keys, and PLACE, how long
-- a place lives in ms: what ends later than that from now is of before the clock was set back.

-- The mark of an owner whose attempts are all refused, which no number follows.
local BARRED = string.format('%.0f', EXACT)

local function extra() return tonumber(redis.call('ZSCORE', weights, EXTRA) or nil) or 0 end

local function weigh(who, weight)
  local sum = extra() + weight - 1
  redis.call('ZADD', weights, weight, who)
  redis.call('ZADD', weights, string.format('%.0f', sum), EXTRA)
  redis.call('ZADD', limits, 1, HEAVY)
end

local function weigh_no_more(who)
  local weight = tonumber(redis.call('ZSCORE', weights, who) or nil)
  if not weight then return end
  local sum = extra() - weight + 1
  redis.call('ZREM', weights, who)
  if sum > 0 then
    redis.call('ZADD', weights, string.format('%.0f', sum), EXTRA)
  else
    redis.call('DEL', weights)
    redis.call('ZREM', limits, HEAVY)
  end
end

local function drop_sharer(who)
  redis.call('ZREM', shares, who)
  redis.call('ZREM', limits, who)
  redis.call('HDEL', details, 's' .. who)
  weigh_no_more(who)
end

-- Sharers that have expired.
local function purge()
  if held ~= SHARED then return end
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', shares, '-inf', string.format('(%.0f', ms))) do
    drop_sharer(who)
  end
end

-- The lock is free when its last sharer has gone.
local function free_if_unshared()
  if redis.call('EXISTS', shares) == 0 then
    redis.call('DEL', lock, limits, weights)
    held = false
  end
end

-- The lock key lives as long as the last sharer's lease: it keeps the clients out that
-- know nothing but that key. It is the last that a script does: what is read afterwards is measured
-- by the time at which the script began, from which the clock may have been set back since.
local function follow_sharers()
  local last = redis.call('ZREVRANGE', shares, 0, 0, 'WITHSCORES')[2]
  if not last then return end
  local left = math.min(tonumber(last), EXACT) - ms -- somebody may have damaged it
  left = string.format('%.0f', math.max(left, 1))
  redis.call('SET', lock, SHARED, 'PX', left)
  for _, key in ipairs({shares, limits, weights}) do redis.call('PEXPIRE', key, left) end
end

-- Lets a key live for at least that long.
local function keep(key, span)
  if redis.call('PTTL', key) < span then redis.call('PEXPIRE', key, span) end
end

-- Lets a key live for no longer than that, as it may after the clock was set back.
local function keep_at_most(key, span)
  if redis.call('PTTL', key) > span then redis.call('PEXPIRE', key, span) end
end

-- What an owner held was ended by another than its claim: attempts that were made until now are late.
-- Those that follow are told the mark, and take greater numbers.
local function bar(key, span)
  local former = tonumber(redis.pcall('GET', key)) or 0
  redis.call('SET', key, string.format('%.0f', math.max(former + 1, ms)), 'PX', span)
end

local function leave(who)
  redis.call('HDEL', details, 'w' .. who)
  return redis.call('ZREM', queue, who) == 1
end

-- When the driver that listens to a channel last kept the places of its waiters; nil: that is too long ago. A beat
-- from before the clock was set back counts from now on. A damaged one is none.
local function last_beat(channel)
  local beat = tonumber(redis.pcall('ZSCORE', beats, channel))
  if beat and beat > ms then
    beat = ms
    redis.call('ZADD', beats, string.format('%.0f', beat), channel)
  end
  return beat and beat + PLACE >= ms and beat
end

-- The first waiter whose place has not expired, and what is stored of it; me is alive,
-- for it is asking. A place that its driver has kept since its last Try counts as tried by the last beat, which has its
-- instant, below zero, in place of a number. A place from before the clock was set back begins anew, so that the
-- living keep theirs and the dead are not waited for. A damaged place is nobody's.
local function head(me)
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then return nil end
    local place = redis.call('HGET', details, 'w' .. first)
    if place then
      if first == me then return first end
      local found = {decode(WAITER, place)}
      if found[1] and found[2] > ms + PLACE then
        found[2] = ms + PLACE
        redis.call('HSET', details, 'w' .. first, cmsgpack.pack(unpack(found, 2)))
      end
      local beat = found[1] and last_beat(found[5])
      if beat and beat > found[8] then -- it was kept after its last Try
        found[2], found[8], found[9] = beat + PLACE, beat, string.format('-%.0f', beat)
      end
      if found[1] and found[2] >= ms then return first, unpack(found, 2) end
    end
    leave(first)
  end
end

-- A mode is x, or s and the weight, of which 1 is left out.
local function is_shared(mode) return string.sub(mode, 1, 1) == 's' end
local function weight_of(mode) return tonumber(string.sub(mode, 2)) or 1 end

-- The smaller of two limits, of which 0 is none.
local function smaller(a, b)
  if a == 0 or b > 0 and b < a then return b end
  return a
end

-- The limit of a shared claim that is decided: an operator's counts, too.
local function limit_of(limit) return smaller(limit, tonumber(redis.pcall('GET', most)) or 0) end

-- Whether a claim can never hold.
local function too_heavy(mode, limit)
  if not is_shared(mode) then return false end
  limit = limit_of(limit)
  return limit > 0 and weight_of(mode) > limit
end

-- Whether nobody who holds excludes such a claim.
local function fits(mode, limit)
  if not held then return not too_heavy(mode, limit) end
  if held ~= SHARED or not is_shared(mode) then return false end
  local count = redis.call('ZCARD', shares)
  if count == 0 then return false end -- held by sharers of another prefix
  local least = redis.call('ZRANGE', limits, 0, 1, 'WITHSCORES')
  least = tonumber(least[1] == HEAVY and least[4] or least[1] ~= HEAVY and least[2]) or 0
  least = smaller(least, limit_of(limit))
  return least == 0 or count + extra() + weight_of(mode) <= least
end

-- Tells the driver behind a channel, and returns how many were listening. A message that
-- nobody hears costs a delay only.
local function tell(channel, kind, who, text)
  if channel == '' then return 0 end
  local publish = string.sub(channel, 1, 12) == 'leasehold:s:' and 'SPUBLISH' or 'PUBLISH'
  return redis.pcall(publish, channel, kind .. #who .. ':' .. who .. text)
end

-- Wakes the first waiter if it would be granted, and nobody else; or, so that it looks
-- when to come back, in any case.
local function wake(anyway)
  local first, _, mode, limit, channel = head()
  if first and (anyway or fits(mode, limit) or too_heavy(mode, limit)) then tell(channel, 'w', first, '') end
end
