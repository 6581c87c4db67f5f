#!lua flags=allow-oom
-- Ends a lease by force, raises the fence, notifies the holder, and keeps the reason for it.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares, 6 limits, 7 why, 8 gone, 9 beats,
--       10 weights, 11 an operator's limit
-- ARGV: 1 owner (empty: a hold that lingers), 2 reason, 3 life of the history in ms (0: for ever),
--       4 for how long to keep the reason at least, in ms, 5 for how long the owner's attempts may
--       still come, in ms, 6 how long a place lives in ms
-- Reply: the raised fence; 0: the owner does not hold the lock
local lock, history, queue, details, shares, limits, beats, weights, most = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[9], KEYS[10], KEYS[11]
local owner = ARGV[1]
local found = redis.call('MGET', lock, history)
local held = found[1]
local PLACE = tonumber(ARGV[6])
--include history.lua
--include prelude.lua
local last, fence, since, by, channel, note = recall(found[2])
local listens, ended, left = '', 0, redis.call('PTTL', lock)
if owner == '' and held == LINGER then owner = LINGER end
if held == owner then
  redis.call('DEL', lock)
  held = false
  if by == owner then listens, ended = channel, fence end
elseif held == SHARED then
  purge()
  for _, who in ipairs(owner == '' and redis.call('ZRANGE', shares, 0, -1) or {}) do
    if string.sub(who, 1, #LINGER) == LINGER then owner = who end
  end
  if not redis.call('ZSCORE', shares, owner) then return 0 end
  local ok, n, _, _, told = decode(SHARER, redis.call('HGET', details, 's' .. owner))
  if ok then listens, ended = told, n end
  drop_sharer(owner)
  free_if_unshared()
else
  return 0
end
last = math.max(last + 1, us)
remember(ARGV[3], last, fence, since, by, channel, note)
if ARGV[1] ~= '' then bar(KEYS[8], ARGV[5]) end
if ended > 0 and ARGV[1] ~= '' then
  redis.call('SET', KEYS[7], string.format('%.0f ', ended) .. ARGV[2], 'PX', math.max(left, tonumber(ARGV[4])))
end
tell(listens, 'e', owner, ARGV[2])
wake()
if held == SHARED then follow_sharers() end
return last
