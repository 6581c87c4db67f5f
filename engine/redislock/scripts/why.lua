#!lua flags=no-writes
-- Returns why a lease of the owner was ended by force.
-- KEYS: 1 why
-- Reply: the fence of the last such lease, a space, and the reason; empty: unknown
return redis.call('GET', KEYS[1]) or ''
