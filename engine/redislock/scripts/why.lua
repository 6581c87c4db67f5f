#!lua flags=no-writes
-- KEYS: 1 why
-- Reply: the fence of the owner's lease that was last ended by force, a space, and the reason; empty: it is not known
return redis.call('GET', KEYS[1]) or ''
