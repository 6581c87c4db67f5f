#!lua
-- Grants an exclusive lease that nobody else wants. A history that never expires stays so.
-- KEYS: 1 lock, 2 history, 3 queue, 4 gone; 5 the mark of memory.lua, if the server must be known
--       to remember
-- ARGV: 1 owner, 2 TTL in ms, 3 life of the history in ms, 4 owner, channel and note as history.lua
--       packs them, 5 ms the server must be known to remember, if there is a mark
-- Reply: the fence; 0: nothing was done, use acquire.lua, which handles all cases
if redis.call('EXISTS', KEYS[3], KEYS[4]) > 0 then return 0 end
if KEYS[5] then
  --include memory.lua
  local _, known = remembers(KEYS[5])
  if known < tonumber(ARGV[5]) then return 0 end
end
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end
local clock = redis.call('TIME')
local n = clock[1] * 1000000 + clock[2]
local ms = math.floor(n / 1000)
local value = struct.pack('>I8I8I8', n, n, ms) .. ARGV[4]
local stays = redis.call('PTTL', KEYS[2]) == -1
local past
if stays then
  past = redis.pcall('SET', KEYS[2], value, 'KEEPTTL', 'GET')
else
  past = redis.pcall('SET', KEYS[2], value, 'PX', ARGV[3], 'GET')
end
if not past then return n end
if type(past) == 'string' then
  local last = #past >= 8 and struct.unpack('>I8', past) or math.huge
  if last < n then return n end
  if last > 9007199254740992 then last = n end -- it is damaged
  -- Restores the history. If its fence is ahead of the clock, it is kept that much longer.
  if stays then
    redis.call('SET', KEYS[2], past, 'KEEPTTL')
  else
    redis.call('SET', KEYS[2], past, 'PX', ARGV[3] + math.floor(last / 1000) - ms)
  end
end
redis.call('DEL', KEYS[1])
return 0
