#!lua flags=allow-oom
-- Releases an exclusive lease that nobody else wants.
-- KEYS: 1 lock, 2 queue, 3 gone
-- ARGV: 1 owner
-- Reply: 1: released; 0: nothing was done, use release.lua, which handles all cases
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 or redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
