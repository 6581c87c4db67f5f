#!lua flags=allow-oom
-- Restarts exclusive leases by their lock keys alone: while a slot of a cluster moves, keys that
-- are used together may be in different places. It shortens no lease, because a late renewal would
-- undo a longer one that was answered. It leaves histories alone.
-- KEYS: lock for each lease; then queue for each holder that wants to know whether others wait
-- ARGV: owner and TTL in ms for each lease; then the index of the lease of each such holder
-- Reply: for each lease 1: renewed; 2: renewed, and others wait; 0: lost; negative: use renew.lua,
--        which handles all cases: -1: it is of another kind, or another's; -2: it is renewed, and
--        ends later than asked
local leases, replies = #ARGV - #KEYS, {}
for i = 1, leases do
  local held, ttl = redis.pcall('GET', KEYS[i]), ARGV[2 * i] -- a damaged lease must not fail the others
  if held ~= ARGV[2 * i - 1] then
    replies[i] = held and -1 or 0
  elseif redis.call('PEXPIRE', KEYS[i], ttl, 'GT') == 0 and redis.call('PTTL', KEYS[i]) > tonumber(ttl) then
    replies[i] = -2
  else
    replies[i] = 1
  end
end
for i = leases + 1, #KEYS do
  local which = tonumber(ARGV[leases + i])
  if replies[which] == 1 and redis.call('EXISTS', KEYS[i]) == 1 then replies[which] = 2 end
end
return replies
