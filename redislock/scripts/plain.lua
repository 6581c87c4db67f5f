#!lua
-- Grants and gives up, each for the plain case: an exclusive lease that nobody else wants.
-- KEYS: for each lease lock, history, queue, gone; then the mark of memory.lua, unless any will do
-- ARGV: 1 life of the history in ms, 2 ms the server must be known to remember to grant
--       (0: any), then for each lease owner, TTL in ms (0: give it up), owner, channel
--       and note as history.lua packs them
-- Reply: for each lease its fence, or 1: given up; 0: nothing was done, ask acquire.lua or
--        release.lua, which know more
local life, trusted, n, ms = ARGV[1], ARGV[2] == '0', nil, nil
--include memory.lua

local function take(lock, history, owner, ttl, about)
  if not trusted then
    local _, known = remembers(KEYS[#KEYS])
    if known < tonumber(ARGV[2]) then return 0 end
    trusted = true
  end
  if not redis.call('SET', lock, owner, 'PX', ttl, 'NX') then return 0 end
  if not n then
    local clock = redis.call('TIME')
    n = clock[1] * 1000000 + clock[2]
    ms = math.floor(n / 1000)
  end
  local past = redis.pcall('SET', history, struct.pack('>I8I8I8', n, n, ms) .. about, 'PX', life, 'GET')
  if not past then return n end
  if type(past) == 'string' then
    local last = #past >= 8 and struct.unpack('>I8', past) or 9007199254740993
    if last < n then return n end
    if last > 9007199254740992 then last = n end -- it is damaged
    -- As it was; it is kept for longer by what it is ahead of the clock.
    redis.call('SET', history, past, 'PX', life + math.floor(last / 1000) - ms)
  end
  redis.call('DEL', lock)
  return 0
end

local function give(lock, owner)
  if redis.pcall('GET', lock) ~= owner then return 0 end
  redis.call('DEL', lock)
  return 1
end

local replies = {}
for i = 1, math.floor(#KEYS / 4) do
  local k, a = 4 * i, 3 * i
  local lock, owner, ttl = KEYS[k - 3], ARGV[a], ARGV[a + 1]
  if redis.call('EXISTS', KEYS[k - 1], KEYS[k]) > 0 then
    replies[i] = 0
  elseif ttl == '0' then
    replies[i] = give(lock, owner)
  else
    replies[i] = take(lock, KEYS[k - 2], owner, ttl, ARGV[a + 2])
  end
end
return replies
