-- The reply {0, …} of acquire.lua: who holds the lock. ahead is 1 for the first in the queue, rest
-- how long the lock rests in ms, and the others are from the history. Uses what prelude.lua uses.
local function obstacle(ahead, rest, fence, since, by, note)
  if not held then return {0, ahead, rest > 0 and 1 or 0, rest} end
  local left = redis.call('PTTL', lock)
  if held == LINGER and by == '' then return {0, ahead, 0, left, '', 'x', fence, held_for(since), note} end
  if held == by then return {0, ahead, 0, left, by, 'x', fence, held_for(since), note} end
  if held ~= SHARED then return {0, ahead, 1, left, held, 'x', 0, 0, ''} end
  local soonest = redis.call('ZRANGE', shares, 0, 0, 'WITHSCORES')
  local ok, n, granted, _, _, text = decode(SHARER, soonest[1] and redis.call('HGET', details, 's' .. soonest[1]))
  if not ok then return {0, ahead, 1, left, '', 's', 0, 0, ''} end
  local who = soonest[1]
  if string.sub(who, 1, #LINGER) == LINGER then who = '' end
  return {0, ahead, 0, soonest[2] - ms, who, 's' .. (redis.call('ZSCORE', weights, soonest[1]) or ''), n, ms - granted, text}
end
