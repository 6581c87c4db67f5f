#!lua flags=no-writes
-- Shows who holds and who waits, as far as nobody has damaged it.
-- KEYS: 1 lock, 2 history, 3 queue, 4 details, 5 shares
-- ARGV: none
-- Reply: {last fence, {owner, mode, fence, held in ms, left in ms, note, …},
--         {owner, mode, waited in ms, note, …}}
local lock, history, queue, details, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SHARED, LINGER = '\31shared', '\31linger'
-- As in prelude.lua.
local PLACE = 3000
local found = redis.call('MGET', lock, history)
local held, past = found[1], found[2]
local clock = redis.call('TIME')
local ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
--include history.lua
local last, fence, since, by, _, note = recall(past)
local holders, waiters = {}, {}
local function add(list, ...)
  for _, v in ipairs({...}) do table.insert(list, v) end
end

local function members(...)
  local list = redis.pcall(...)
  return list.err and {} or list
end

-- What is stored about one; nothing if it is missing or damaged.
local function about(who)
  local stored = redis.pcall('HGET', details, who)
  if type(stored) ~= 'string' then return false end
  return pcall(cmsgpack.unpack, stored)
end

local left = held and redis.call('PTTL', lock)
if held == SHARED then
  local all = members('ZRANGEBYSCORE', shares, string.format('%.0f', ms), '+inf', 'WITHSCORES')
  for i = 1, #all, 2 do
    local who = all[i]
    local ok, n, granted, _, _, text = about('s' .. who)
    if not ok then n, granted, text = 0, ms, '' end
    if string.sub(who, 1, #LINGER) == LINGER then who = '' end
    add(holders, who, 's', n, ms - granted, all[i + 1] - ms, text)
  end
elseif held and (held == by or held == LINGER) then
  add(holders, by, 'x', fence, ms - since, left, note)
elseif held then
  add(holders, held, 'x', 0, 0, left, '')
end
for _, who in ipairs(members('ZRANGE', queue, 0, -1)) do
  local ok, expires, mode, _, _, began, text = about('w' .. who)
  if ok and expires >= ms and expires <= ms + PLACE then add(waiters, who, mode, ms - began, text) end
end
return {last, holders, waiters}
