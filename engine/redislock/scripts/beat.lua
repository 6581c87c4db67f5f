#!lua flags=allow-oom
-- Keeps the places of all waiters behind one channel by one write, and reports what became of them.
-- The places of owners that no longer wait are removed once they would have expired without the
-- beats.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares, 6 limits, 7 beats, 8 weights,
--       9 an operator's limit
-- ARGV: 1 channel of the waiters, 2 how long a place lives in ms, 3 number of waiters behind
--       others, 4 number of waiters that ask themselves, 5 1: another call has more owners; then
--       the owners of both, then the owners that no longer wait
-- Reply: {the instant of the beat in ms, owner of the first in the queue (empty if another call has
--        more owners), {indexes of the waiters behind others without a place, …}, what acquire.lua
--        replies to a refused attempt}
local lock, history, queue, details, shares, limits, beats, weights, most = unpack(KEYS)
local mine, PLACE, behind, live = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[3] + ARGV[4]
local found = redis.call('MGET', lock, history)
local held, past = found[1], found[2]
--include history.lua
--include prelude.lua
--include obstacle.lua
purge()
local missing, placed = {}, false
for i = 1, live do
  if redis.call('ZSCORE', queue, ARGV[5 + i]) then
    placed = true
  elseif i <= behind then
    table.insert(missing, i)
  end
end
if placed then
  if not last_beat(mine) then redis.call('ZADD', beats, string.format('%.0f', -ms), SINCE .. mine) end
  local since = beats_since(mine)
  for i = 1, ms - since < PLACE and live or 0 do -- later, their places are known to be kept
    local place = {decode(WAITER, redis.call('HGET', details, 'w' .. ARGV[5 + i]))}
    if place[1] and place[2] < since then begin_anew(ARGV[5 + i], place) end
  end
  redis.call('ZADD', beats, string.format('%.0f', ms), mine)
  for _, key in ipairs({queue, details, beats}) do
    if redis.call('PTTL', key) < PLACE then redis.call('PEXPIRE', key, 2 * PLACE) end -- not each time
  end
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', beats, 0, string.format('(%.0f', ms - PLACE))) do
    redis.call('ZREM', beats, dead, SINCE .. dead)
  end
end
for i = 6 + live, #ARGV do
  local ok, expires, _, _, channel = decode(WAITER, redis.call('HGET', details, 'w' .. ARGV[i]))
  if ok and channel == mine and expires < ms then leave(ARGV[i]) end
end
local _, fence, since, by, _, note = recall(past)
-- head removes expired places, which the owners of another call may have.
local first = ARGV[5] == '0' and head() or ''
return {ms, first, missing, obstacle(0, 0, fence, since, by, note)}
