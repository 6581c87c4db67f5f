#!lua flags=allow-oom
-- Restarts exclusive leases, each by its one key: while a slot of a cluster moves, keys that
-- are used together may be in different places. A lease is shortened only when the clock
-- has gone back, which would lengthen it, or when the caller wants that now: a late renewal
-- would otherwise undo a longer one that was answered. Histories are left alone.
-- KEYS: for each lease lock
-- ARGV: for each lease owner, TTL in ms, the time of the server, in us, before which it may
--       be shortened
-- Reply: for each lease 1: renewed; 0: lost; -1: ask renew.lua, which knows more; and the
--        server's time in us
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local replies = {}
for i = 1, #KEYS do
  local held = redis.pcall('GET', KEYS[i]) -- a damaged one must not fail the others
  if held == ARGV[3 * i - 2] then
    if us < tonumber(ARGV[3 * i]) then
      redis.call('PEXPIRE', KEYS[i], ARGV[3 * i - 1])
    else
      redis.call('PEXPIRE', KEYS[i], ARGV[3 * i - 1], 'GT')
    end
    replies[i] = 1
  else
    replies[i] = held and -1 or 0
  end
end
table.insert(replies, us)
return replies
