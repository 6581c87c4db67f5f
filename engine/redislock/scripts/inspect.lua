#!lua flags=no-writes
-- Shows holders and waiters of several names, and which of their data is damaged.
-- KEYS: for each name lock, history, queue, details, shares, beats, weights, an operator's limit
-- ARGV: 1 how long a place lives in ms
-- Reply: for each name {last fence, {owner, mode, limit, fence, held in ms, left in ms, note, …},
--        {owner, mode, waited in ms, note, …}, {what is damaged, …}, the operator's limit}, or
--        WRONGTYPE
local PLACE = tonumber(ARGV[1])
local strings = {}
for i = 1, #KEYS, 8 do
  for _, n in ipairs({0, 1, 7}) do table.insert(strings, KEYS[i + n]) end
end
local found = redis.call('MGET', unpack(strings))
local history
--include history.lua
local function add(list, ...)
  for _, v in ipairs({...}) do table.insert(list, v) end
end

-- Shows one name. held and past are the values of its lock and history.
local function show(held, past, most, lock, history, queue, details, shares, beats, weights)
  local last, fence, since, by, _, note, bad_history = recall(past)
  local holders, waiters, damaged = {}, {}, {}

  -- Returns the reply to a command. If its key has another type, adds what to the damaged parts.
  local function ask(what, ...)
    local reply = redis.pcall(...)
    if type(reply) ~= 'table' or not reply.err then return reply end
    add(damaged, what)
    return {}
  end

  local left = held and redis.call('PTTL', lock)
  if held == SHARED then
    local all = ask('the holders', 'ZRANGEBYSCORE', shares, string.format('%.0f', ms), '+inf', 'WITHSCORES')
    local heavy = redis.call('EXISTS', weights) == 1
    for i = 1, #all, 2 do
      local who, ends = all[i], tonumber(all[i + 1])
      local stored = ask('the details', 'HGET', details, 's' .. who)
      local ok, n, granted, limit, _, text = decode(SHARER, stored)
      if not ok or ends > EXACT then
        if stored then add(damaged, 'a holder') end
        n, granted, limit, text, ends = 0, ms, 0, '', math.min(ends, ms)
      end
      if string.sub(who, 1, #LINGER) == LINGER then who = '' end
      add(holders, who, 's' .. (heavy and tonumber(redis.pcall('ZSCORE', weights, all[i])) or ''), limit, n, ms - granted, ends - ms, text)
    end
  elseif held and (held == by or held == LINGER) then
    add(holders, by, 'x', 0, fence, held_for(since), left, note)
  elseif held then
    add(holders, held, 'x', 0, 0, 0, left, '')
  elseif redis.call('EXISTS', lock) == 1 then
    return redis.error_reply('WRONGTYPE the lock key holds no string')
  end
  if bad_history or not past and redis.call('EXISTS', history) == 1 then add(damaged, 'the history') end
  for _, who in ipairs(ask('the queue', 'ZRANGE', queue, 0, -1)) do
    local stored = ask('the details', 'HGET', details, 'w' .. who)
    local ok, expires, mode, _, channel, began, text = decode(WAITER, stored)
    local beat = ok and tonumber(redis.pcall('ZSCORE', beats, channel)) or 0
    local since = ok and -(tonumber(redis.pcall('ZSCORE', beats, SINCE .. channel)) or 0)
    if not ok then
      if stored then add(damaged, 'a waiter') end
    elseif expires >= ms and expires <= ms + PLACE or beat >= ms - PLACE and beat <= ms and (expires >= since or since > ms) then
      add(waiters, who, mode, ms - began, text)
    end
  end
  return {last, holders, waiters, damaged, tonumber(most) or 0}
end

local replies = {}
for i = 1, #KEYS, 8 do
  local n = (i - 1) / 8 * 3
  table.insert(replies, show(found[n + 1], found[n + 2], found[n + 3], unpack(KEYS, i, i + 6)))
end
return replies
