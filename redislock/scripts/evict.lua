#!lua flags=allow-oom
-- Ends a lease by force, raises the fence and tells the holder.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares, 6 limits
-- ARGV: 1 owner, 2 reason, 3 life of the history in ms (0: for ever)
-- Reply: the raised fence; 0: the owner holds nothing
local lock, history, queue, details, shares, limits = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]
local found = redis.call('MGET', lock, history)
local held, past = found[1], found[2]
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
--include prelude.lua
local last, crowd, fence, since, by, channel, note = 0, 1, 0, 0, '', '', ''
if past then last, crowd, fence, since, by, channel, note = cmsgpack.unpack(past) end
local listens = ''
if held == owner then
  redis.call('DEL', lock)
  held = false
  if by == owner then listens = channel end
elseif held == SHARED then
  purge()
  if not redis.call('ZSCORE', shares, owner) then return 0 end
  local mine = redis.call('HGET', details, 's' .. owner)
  if mine then listens = select(4, cmsgpack.unpack(mine)) end
  drop_sharer(owner)
  follow_sharers()
else
  return 0
end
last = math.max(last + 1, us)
local value = cmsgpack.pack(last, crowd, fence, since, by, channel, note)
if ARGV[3] == '0' then
  redis.call('SET', history, value)
else
  redis.call('SET', history, value, 'PX', ARGV[3])
end
tell(listens, 'e', owner, ARGV[2])
wake()
return last
