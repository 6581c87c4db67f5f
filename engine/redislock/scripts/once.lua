#!lua
-- Runs a command unless its key is done, and marks it as done in the same breath.
-- KEYS: 1 done, 2 token, 3 the command's key
-- ARGV: 1 owner, 2 token, 3 this attempt, 4 life of the mark in ms
--       (0: for ever), 5 the command's name, then what follows its key
-- Reply: {0, reply} it ran; {1} it had run by this attempt; {2} it was done; {3, token} the
--        token is stale; {4, error} the command's: nothing was done
local owner, token, attempt, life = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local mark = redis.call('GET', KEYS[1])
if mark == attempt then return {1} end
if mark == '' then mark = false end -- what it stood for did not happen

-- Tokens are above what a Lua number holds. They have no leading zeros.
local function above(a, b) return #a > #b or #a == #b and a > b end
local seen = redis.call('HMGET', KEYS[2], 'token', 'owner')
if seen[1] and (above(seen[1], token) or seen[1] == token and seen[2] ~= owner) then
  return {3, seen[1]}
end
if mark then return {2} end

-- What may fail comes before the mark: to write at all, for want of memory or a permission,
-- and to have as many arguments on Lua's stack. The mark is one command and comes before the
-- effect, because it may fail too; it is taken back by the same command, which cannot fail
-- then. And from the first write on, the server does not end a script that takes too long.
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
