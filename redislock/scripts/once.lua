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

-- Tokens are above what a Lua number holds. They have no leading zeros.
local function above(a, b) return #a > #b or #a == #b and a > b end
local seen = redis.call('HMGET', KEYS[2], 'token', 'owner')
if seen[1] and (above(seen[1], token) or seen[1] == token and seen[2] ~= owner) then
  return {3, seen[1]}
end
if mark then return {2} end

-- The mark first: if there is no room for it, the command must not run either.
redis.call('SET', KEYS[1], attempt)
if life ~= '0' then redis.call('PEXPIRE', KEYS[1], life) end
redis.call('HSET', KEYS[2], 'token', token, 'owner', owner)
if life ~= '0' then redis.call('PEXPIRE', KEYS[2], life) end
local reply = redis.pcall(ARGV[5], KEYS[3], unpack(ARGV, 6))
if type(reply) == 'table' and reply.err then
  redis.call('DEL', KEYS[1])
  return {4, reply.err}
end
return {0, reply}
