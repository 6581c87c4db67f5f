#!lua
-- Raises the last fence given.
-- KEYS: 1 history
-- ARGV: 1 fence, 2 life of the history in ms (0: for ever)
-- Reply: the last fence from now on
local last, crowd, fence, since, by, channel, note = 0, 1, 0, 0, '', '', ''
local past = redis.call('GET', KEYS[1])
if past then last, crowd, fence, since, by, channel, note = cmsgpack.unpack(past) end
last = math.max(last, tonumber(ARGV[1]))
local value = cmsgpack.pack(last, crowd, fence, since, by, channel, note)
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], value)
else
  redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
end
return last
