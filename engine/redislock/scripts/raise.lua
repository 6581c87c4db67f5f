#!lua
-- Raises the last fence given.
-- KEYS: 1 lock, 2 history
-- ARGV: 1 fence, 2 life of the history in ms (0: for ever), 3 owner who must hold the lock (else
--       empty)
-- Reply: the last fence from now on; -1: the owner does not hold the lock
local lock, history = KEYS[1], KEYS[2]
--include history.lua
if ARGV[3] ~= '' and redis.call('GET', lock) ~= ARGV[3] then return -1 end
local last, fence, since, by, channel, note = recall(redis.call('GET', history))
last = math.max(last, tonumber(ARGV[1]))
remember(ARGV[2], last, fence, since, by, channel, note)
return last
