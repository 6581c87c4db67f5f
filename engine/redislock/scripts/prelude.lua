-- Included by other scripts after history.lua and their fast path. It uses held (the value of the
-- lock key, or false), the keys, and PLACE, how long a place lives in ms. A place that ends later
-- than that is from before the clock was set back.

-- The mark of an owner whose attempts are all refused. No number exceeds it.
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

-- Removes sharers that have expired.
local function purge()
  if held ~= SHARED then return end
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', shares, '-inf', string.format('(%.0f', ms))) do
    drop_sharer(who)
  end
end

-- Frees the lock if its last sharer has gone.
local function free_if_unshared()
  if redis.call('EXISTS', shares) == 0 then
    redis.call('DEL', lock, limits, weights)
    held = false
  end
end

-- Lets the lock key live as long as the last sharer's lease, to exclude clients that know only that
-- key. It must be the last step of a script: a later read would be compared with the time at which
-- the script began, and the clock may have been set back since.
local function follow_sharers()
  local last = redis.call('ZREVRANGE', shares, 0, 0, 'WITHSCORES')[2]
  if not last then return end
  local left = math.min(tonumber(last), EXACT) - ms -- somebody may have damaged it
  left = string.format('%.0f', math.max(left, 1))
  redis.call('SET', lock, SHARED, 'PX', left)
  for _, key in ipairs({shares, limits, weights}) do redis.call('PEXPIRE', key, left) end
end

-- Lets a key live for span at least.
local function keep(key, span)
  if redis.call('PTTL', key) < span then redis.call('PEXPIRE', key, span) end
end

-- Lets a key live for span at most. It may live longer after the clock was set back.
local function keep_at_most(key, span)
  if redis.call('PTTL', key) > span then redis.call('PEXPIRE', key, span) end
end

-- Refuses all attempts that the owner has made until now, because another than its claim ended its
-- lease. Later attempts are refused with the mark, and are repeated with greater numbers.
local function bar(key, span)
  local former = redis.pcall('GET', key)
  if former == BARRED then return keep(key, tonumber(span)) end
  redis.call('SET', key, string.format('%.0f', math.max((tonumber(former) or 0) + 1, ms)), 'PX', span)
end

-- Refuses all attempts of the owner, later ones too.
local function keep_out(key, span)
  redis.call('SET', key, BARRED, 'PX', math.max(span, redis.call('PTTL', key)))
end

local function leave(who)
  redis.call('HDEL', details, 'w' .. who)
  return redis.call('ZREM', queue, who) == 1
end

-- Returns when the driver behind a channel last kept the places of its waiters; nil: longer ago
-- than PLACE. A beat from before the clock was set back counts from now on. A damaged beat counts
-- as none.
local function last_beat(channel)
  local beat = tonumber(redis.pcall('ZSCORE', beats, channel))
  if beat and beat > ms then
    beat = ms
    redis.call('ZADD', beats, string.format('%.0f', beat), channel)
  end
  return beat and beat + PLACE >= ms and beat
end

-- Returns the instant of SINCE for a channel; 0: unknown. One from before the clock was set back is
-- removed.
local function beats_since(channel)
  local since = -(tonumber(redis.pcall('ZSCORE', beats, SINCE .. channel)) or 0)
  if since <= ms then return since end
  redis.call('ZREM', beats, SINCE .. channel)
  return 0
end

-- Lets a place live for PLACE from now on. found is what decode has returned of it.
local function begin_anew(who, found)
  found[2] = ms + PLACE
  redis.call('HSET', details, 'w' .. who, cmsgpack.pack(unpack(found, 2)))
end

-- Returns the first waiter whose place has not expired, and what is stored of it. The place of me
-- is valid, because me is asking.
--
-- If the driver has kept a place since its last Try, the last beat counts as that Try, and the
-- number is replaced by the negative instant of the beat. A place from before the clock was set
-- back begins anew, so that live waiters keep theirs and dead ones still expire. A damaged place is
-- removed.
local function head(me)
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then return nil end
    local place = redis.call('HGET', details, 'w' .. first)
    if place then
      if first == me then return first end
      local found = {decode(WAITER, place)}
      if found[1] and found[2] > ms + PLACE then begin_anew(first, found) end
      local beat = found[1] and (found[2] >= ms or found[2] >= beats_since(found[5])) and last_beat(found[5])
      if beat and beat > found[8] then -- it was kept after its last Try
        found[2], found[8], found[9] = beat + PLACE, beat, string.format('-%.0f', beat)
      end
      if found[1] and found[2] >= ms then return first, unpack(found, 2) end
    end
    leave(first)
  end
end

-- A mode is x, or s and the weight. A weight of 1 is left out.
local function is_shared(mode) return string.sub(mode, 1, 1) == 's' end
local function weight_of(mode) return tonumber(string.sub(mode, 2)) or 1 end

-- The smaller of two limits, where 0 is none.
local function smaller(a, b)
  if a == 0 or b > 0 and b < a then return b end
  return a
end

-- The limit of a shared claim. The operator's limit counts too.
local function limit_of(limit) return smaller(limit, tonumber(redis.pcall('GET', most)) or 0) end

-- Whether the claim exceeds the limit by itself, so that it can never hold.
local function too_heavy(mode, limit)
  if not is_shared(mode) then return false end
  limit = limit_of(limit)
  return limit > 0 and weight_of(mode) > limit
end

-- Whether no holder excludes such a claim.
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

-- Sends a message to the driver behind a channel, and returns how many received it. A lost message
-- costs only a delay.
local function tell(channel, kind, who, text)
  if channel == '' then return 0 end
  local publish = string.sub(channel, 1, 12) == 'leasehold:s:' and 'SPUBLISH' or 'PUBLISH'
  return redis.pcall(publish, channel, kind .. #who .. ':' .. who .. text)
end

-- Wakes the first waiter if it would be granted the lock, or can never hold it. With anyway, wakes
-- it in any case, so that it learns when to try again.
local function wake(anyway)
  local first, _, mode, limit, channel = head()
  if first and (anyway or fits(mode, limit) or too_heavy(mode, limit)) then tell(channel, 'w', first, '') end
end
