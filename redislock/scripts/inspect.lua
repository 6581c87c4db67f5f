#!lua flags=no-writes
-- Shows who holds and who waits.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares
-- ARGV: none
-- Reply: {last fence, {owner, mode, fence, held in ms, left in ms, note, …},
--         {owner, mode, waited in ms, note, …}}
local lock, history, queue, details, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SHARED, LINGER = '\31shared', '\31linger'
local found = redis.call('MGET', lock, history)
local held, past = found[1], found[2]
local clock = redis.call('TIME')
local ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
local last, crowd, fence, since, by, channel, note = 0, 1, 0, 0, '', '', ''
if past then last, crowd, fence, since, by, channel, note = cmsgpack.unpack(past) end
local holders, waiters = {}, {}
local function add(list, ...)
  for _, v in ipairs({...}) do table.insert(list, v) end
end
local left = held and redis.call('PTTL', lock)
if held == SHARED then
  local all = redis.call('ZRANGEBYSCORE', shares, string.format('%.0f', ms), '+inf', 'WITHSCORES')
  for i = 1, #all, 2 do
    local who, mine = all[i], redis.call('HGET', details, 's' .. all[i])
    local n, granted, _, _, text = 0, ms, 0, '', ''
    if mine then n, granted, _, _, text = cmsgpack.unpack(mine) end
    if string.sub(who, 1, #LINGER) == LINGER then who = '' end
    add(holders, who, 's', n, ms - granted, all[i + 1] - ms, text)
  end
elseif held and (held == by or held == LINGER) then
  add(holders, by, 'x', fence, ms - since, left, note)
elseif held then
  add(holders, held, 'x', 0, 0, left, '')
end
for _, who in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  local place = redis.call('HGET', details, 'w' .. who)
  if place then
    local expires, mode, _, _, began, text = cmsgpack.unpack(place)
    if expires >= ms then add(waiters, who, mode, ms - began, text) end
  end
end
return {last, holders, waiters}
