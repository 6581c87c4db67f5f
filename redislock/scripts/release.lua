#!lua flags=allow-oom
-- Gives up a lease or a place in the queue, and wakes the next.
-- KEYS: 1 lock, 2 history, 3 gone, 4 queue, 5 details, 6 shares, 7 limits
-- ARGV: 1 owner, 2 linger in ms (0: free at once), 3 number of the last attempt, if its
--       outcome is unknown so that it may still come (else empty), 4 how long to remember
--       that in ms, 5 number of this release
-- Reply: 1 given up; 0 there was nothing
local lock, history, queue, details, shares, limits = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local owner, linger = ARGV[1], tonumber(ARGV[2])
local found = redis.call('MGET', lock, history, KEYS[3])
local held, past = found[1], found[2]
if found[3] and tonumber(found[3]) >= tonumber(ARGV[5]) then return 0 end -- it comes late: what is held was granted since
local last, crowd, fence, since, by, channel, note = 0, 1, 0, 0, '', '', ''
if past then
  local _
  _, last, crowd = cmsgpack.unpack_limit(past, 2)
end
if held == owner and crowd == 0 and linger == 0 and ARGV[3] == '' then
  redis.call('DEL', lock)
  return 1
end

local clock = redis.call('TIME')
local ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
--include prelude.lua
local given = 0
if held == owner then
  given = 1
  if linger > 0 then
    held = LINGER
    redis.call('SET', lock, LINGER, 'PX', linger)
    if past then
      last, crowd, fence, since, by, channel, note = cmsgpack.unpack(past)
      redis.call('SET', history, cmsgpack.pack(last, crowd, fence, since, '', '', note), 'KEEPTTL')
    end
  else
    redis.call('DEL', lock)
    held = false
  end
elseif held == SHARED then
  purge()
  if redis.call('ZSCORE', shares, owner) then
    given = 1
    if linger > 0 then
      local mine = redis.call('HGET', details, 's' .. owner)
      local limit = redis.call('ZSCORE', limits, owner)
      local nobody = LINGER .. owner
      redis.call('ZADD', shares, string.format('%.0f', ms + linger), nobody)
      if limit then redis.call('ZADD', limits, limit, nobody) end
      if mine then redis.call('HSET', details, 's' .. nobody, mine) end
      keep(details, linger)
    end
    drop_sharer(owner)
    follow_sharers()
  end
end
if leave(owner) and linger == 0 then given = 1 end
if ARGV[3] ~= '' then redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4]) end
wake(linger > 0) -- what lingers ends sooner than the first waiter was told
return given
