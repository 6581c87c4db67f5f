#!lua
-- Runs a command and marks its key as done, unless it is done already.
-- KEYS: 1 done, 2 token, 3 the command's key
-- ARGV: 1 owner, 2 token, 3 id of this attempt, 4 life of the mark in ms (0: for ever), 5 the
--       command's name, then its arguments after the key
-- Reply: {0, reply} it ran; {1} this attempt had run it before; {2} it was done; {3, token} the
--        token is stale; {4, error} the command's error, nothing was done
local owner, token, attempt, life = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local mark = redis.call('GET', KEYS[1])
if mark == attempt then return {1} end
if mark and mark ~= '' then return {2} end -- it is empty if its command was refused

-- Tokens may exceed what a Lua number holds exactly, so they are compared as text. They have no
-- leading zeros.
local function above(a, b) return #a > #b or #a == #b and a > b end
local seen = redis.call('HMGET', KEYS[2], 'token', 'owner')
if seen[1] and (above(seen[1], token) or seen[1] == token and seen[2] ~= owner) then
  return {3, seen[1]}
end

-- What may fail comes before the mark: the first write, for want of memory or a permission, and the
-- arguments, for want of room on Lua's stack. The mark may fail too, so it comes before the effect.
-- If the effect is refused, the same command takes the mark back, and cannot fail then. After its
-- first write, a script that takes too long is not ended by the server.
local function effect(...)
  redis.call('HSET', KEYS[2], 'token', token, 'owner', owner)
  if life == '0' then
    redis.call('SET', KEYS[1], attempt)
  else
    redis.call('PEXPIRE', KEYS[2], life)
    redis.call('SET', KEYS[1], attempt, 'PX', life)
  end
  return redis.pcall(ARGV[5], KEYS[3], ...)
end
local reply = effect(unpack(ARGV, 6))
if type(reply) == 'table' and reply.err then
  redis.call('SET', KEYS[1], '', 'PX', 1)
  return {4, reply.err}
end
return {0, reply}
