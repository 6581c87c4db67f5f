#!lua flags=allow-oom
-- Restarts exclusive leases, each by its one key: while a slot of a cluster moves, keys that
-- are used together may be in different places. It shortens none: a late renewal would undo a longer
-- one that was answered. Histories are left alone.
-- KEYS: for each lease lock; then for each that wants to know whether others wait queue
-- ARGV: for each lease owner, TTL in ms; then for each of those that want to know it which lease it is
-- Reply: for each lease 1: renewed; 2: renewed, and others wait; 0: lost; negative: ask renew.lua, which knows
--        more: -1: it is of another kind, or another's; -2: it is renewed, and ends later than that
local leases, replies = #ARGV - #KEYS, {}
for i = 1, leases do
  local held, ttl = redis.pcall('GET', KEYS[i]), ARGV[2 * i] -- a damaged one must not fail the others
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
