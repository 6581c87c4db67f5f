#!lua flags=allow-oom
-- Gives up a lease or a place in the queue, and grants the lock to the next waiter or wakes it.
-- KEYS: 1 lock, 2 history, 3 gone, 4 queue, 5 details, 6 shares, 7 limits, 8 when a rest ends,
--       9 beats, 10 weights, 11 an operator's limit
-- ARGV: 1 owner, 2 linger in ms (0: free at once), 3 number of the last attempt, if it may still
--       come (else empty; 'all': what is held was granted to another claim of the owner), 4 how
--       long to remember that in ms, 5 number of this release, with 'all' the fence of what is
--       held, 6 length of a rest in ms (0: there are none), 7 least time between the beginnings of
--       two rests in ms, 8 for how long to refuse all attempts of the owner in ms (0: do not),
--       9 how long a place lives in ms
-- Reply: 1 given up; 2 and granted to the next; 0 nothing to give up; -1 what is held was granted
--        later
local lock, history, queue, details, shares, limits, beats, weights, most = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11]
local owner, linger = ARGV[1], tonumber(ARGV[2])
local found = redis.call('MGET', lock, history, KEYS[3])
local held, past = found[1], found[2]
local PLACE = tonumber(ARGV[9])
local late = ARGV[3] ~= 'all' and found[3] and tonumber(found[3]) >= tonumber(ARGV[5]) -- what is held was granted since
if late and ARGV[8] == '0' then return 0 end
--include history.lua
-- The last sharer of a lock that nobody else wants. The code below has the same effect.
if held == SHARED and linger == 0 and ARGV[3] == '' and ARGV[6] == '0' and ARGV[8] == '0' and redis.call('EXISTS', queue) == 0 then
  local two = redis.call('ZRANGE', shares, 0, 1, 'WITHSCORES')
  if #two == 2 and two[1] == owner and tonumber(two[2]) >= ms then
    redis.call('DEL', lock, shares, details, limits, weights)
    return 1
  end
end
--include prelude.lua
if late then
  keep_out(KEYS[3], tonumber(ARGV[8]))
  return 0
end

-- Grants the lock to the first waiter, which need not ask again. Returns whether it was granted.
-- Unless it is renewed, the lease ends when the waiter's place would have, so a dead waiter delays
-- others no longer than its place.
--
-- The waiter knows only one instant here: it sent its last Try before that was served. So the
-- message has the lease's length since that Try was served, and also its length from now on,
-- because the clock may have been set since.
local function grant_next()
  local first, expires, mode, _, channel, _, note, asked, number, ttl, loss, life = head()
  if not first or mode ~= 'x' then return false end
  local n = past and next_fence((recall(past)), us)
  local span = n and math.min(ttl, expires - ms) or 0
  if span <= 0 then return false end
  local text = string.format('%s %.0f %.0f %.0f', number, n, ms - asked + span, span)
  if wants(loss) and redis.call('ZCARD', queue) > 1 then text = text .. ' 1' end -- others wait
  local heard = tell(channel, 'g', first, text)
  if type(heard) ~= 'number' or heard == 0 then return false end -- nobody listens, or the waiter comes back by itself
  redis.call('SET', lock, first, 'PX', span)
  leave(first)
  remember(life, n, n, ms, first, loss, note)
  return true
end

-- The fence of what the owner holds; 0: it holds nothing, or the fence is unknown.
local function fence_held()
  if held == owner and past then
    local _, fence, _, by = recall(past)
    return by == owner and fence or 0
  end
  if held ~= SHARED then return 0 end
  local ok, fence = decode(SHARER, redis.call('HGET', details, 's' .. owner))
  return ok and fence or 0
end

if ARGV[3] == 'all' and fence_held() > tonumber(ARGV[5]) then return -1 end

local given = 0
local freed = held == owner and linger == 0 -- the key must be deleted, or passed to the next
if held == owner then
  given = 1
  if linger > 0 then
    held = LINGER
    redis.call('SET', lock, LINGER, 'PX', linger)
    if past then
      local last, fence, since, _, _, note = recall(past)
      remember('', last, fence, since, '', '', note)
      if redis.call('PTTL', history) ~= -1 then keep(history, linger) end
    end
  else
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
      local weight = tonumber(redis.call('ZSCORE', weights, owner) or nil)
      if weight then weigh(nobody, weight) end
    end
    drop_sharer(owner)
    free_if_unshared()
  end
end
if given == 0 and leave(owner) and linger == 0 then given = 1 end
if ARGV[8] ~= '0' then
  keep_out(KEYS[3], tonumber(ARGV[8]))
elseif ARGV[3] == 'all' then
  bar(KEYS[3], ARGV[4])
elseif ARGV[3] ~= '' then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
end
-- Begins a rest: clients that do not queue may take the lock, and the next waiter comes when it is
-- over. A rest that began before the clock was set back must not keep others from one.
if ARGV[6] ~= '0' then keep_at_most(KEYS[8], tonumber(ARGV[7])) end
local rests = not held and ARGV[6] ~= '0' and redis.call('SET', KEYS[8], string.format('%.0f', ms + ARGV[6]), 'PX', ARGV[7], 'NX')
if not held and not rests and (freed or redis.call('EXISTS', lock) == 0) then -- another type than string belongs to another program
  local ok, granted = pcall(grant_next) -- a damaged queue must not keep the lock held
  if ok and granted then return 2 * given end
  local holds = not ok and redis.call('GET', lock)
  if holds and holds ~= owner then return given end -- it was granted before the error
end
if freed then redis.call('DEL', lock) end
wake(linger > 0) -- a hold that lingers ends sooner than the first waiter expects
if held == SHARED then
  if linger > 0 then keep(details, linger) end
  follow_sharers()
end
return given
