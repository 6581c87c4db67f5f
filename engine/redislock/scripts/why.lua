#!lua flags=no-writes
-- KEYS: 1 lock, 2 why
-- Reply: the fence of the owner's lease that was last ended by force, a space, and the reason; empty: it is not known
return redis.call('GET', KEYS[2]) or ''
