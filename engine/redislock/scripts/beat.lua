#!lua flags=allow-oom
-- Keeps the places of all waiters behind one channel by one write, and reports what became of them.
-- The places of owners that no longer wait are removed once they would have expired without the
-- beats.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares, 6 limits, 7 beats, 8 weights,
--       9 an operator's limit
-- ARGV: 1 channel of the waiters, 2 how long a place lives in ms, 3 number of waiters, then their
--       owners, then the owners that no longer wait
-- Reply: {the instant of the beat in ms, owner of the first in the queue, {indexes of the waiters
--        without a place, …}, what acquire.lua replies to a refused attempt}
local lock, history, queue, details, shares, limits, beats, weights, most = unpack(KEYS)
local mine, PLACE, waiting = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local found = redis.call('MGET', lock, history)
local held, past = found[1], found[2]
local clock = redis.call('TIME')
local ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
--include history.lua
--include prelude.lua
--include obstacle.lua
purge()
local missing = {}
for i = 1, waiting do
  if not redis.call('ZSCORE', queue, ARGV[3 + i]) then table.insert(missing, i) end
end
if #missing < waiting then
  if not last_beat(mine) then redis.call('ZADD', beats, string.format('%.0f', -ms), SINCE .. mine) end
  local since = beats_since(mine)
  for i = 1, ms - since < PLACE and waiting or 0 do -- later, their places are known to be kept
    local place = {decode(WAITER, redis.call('HGET', details, 'w' .. ARGV[3 + i]))}
    if place[1] and place[2] < since then begin_anew(ARGV[3 + i], place) end
  end
  redis.call('ZADD', beats, string.format('%.0f', ms), mine)
  for _, key in ipairs({queue, details, beats}) do
    if redis.call('PTTL', key) < PLACE then redis.call('PEXPIRE', key, 2 * PLACE) end -- not each time
  end
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', beats, 0, string.format('(%.0f', ms - PLACE))) do
    redis.call('ZREM', beats, dead, SINCE .. dead)
  end
end
for i = 4 + waiting, #ARGV do
  local ok, expires, _, _, channel = decode(WAITER, redis.call('HGET', details, 'w' .. ARGV[i]))
  if ok and channel == mine and expires < ms then leave(ARGV[i]) end
end
local _, fence, since, by, _, note = recall(past)
return {ms, head() or '', missing, obstacle(0, 0, fence, since, by, note)}
