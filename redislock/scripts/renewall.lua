#!lua flags=allow-oom
-- Restarts many exclusive leases. It never revives one that has ended.
-- KEYS: for each lease lock, history
-- ARGV: 1 life of the history in ms, then for each lease owner, TTL in ms, channel
-- Reply: for each lease its fence; 0: lost; -1: ask renew.lua, which knows more
local life, replies = ARGV[1], {}
for i = 1, #KEYS / 2 do
  local lock, history = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, ttl, channel = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local held = redis.call('GET', lock)
  local reply = held and -1 or 0
  if held == owner then
    redis.call('PEXPIRE', lock, ttl)
    local past = life == '0' and redis.call('GET', history) or redis.call('GETEX', history, 'PX', life)
    if past then
      local _, _, fence, _, by, heard = cmsgpack.unpack(past)
      if by == owner and (heard == channel or channel == '') then reply = fence end
    end
  end
  replies[i] = reply
end
return replies
