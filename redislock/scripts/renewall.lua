#!lua flags=allow-oom
-- Restarts many exclusive leases, as renew.lua does, and shortens none.
-- KEYS: for each lease lock, history
-- ARGV: 1 life of the history in ms, then for each lease owner, TTL in ms, channel
-- Reply: for each lease its fence; 0: lost; -1: ask renew.lua, which knows more
local life, replies = ARGV[1], {}
for i = 1, #KEYS / 2 do
  local lock, history = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, ttl, channel = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local held = redis.pcall('GET', lock) -- a damaged one must not fail the others
  local reply = held and -1 or 0
  if held == owner then
    redis.call('PEXPIRE', lock, ttl, 'GT')
    local past = life == '0' and redis.pcall('GET', history) or redis.pcall('GETEX', history, 'PX', life)
    if type(past) == 'string' then
      local ok, _, _, fence, _, by, heard = pcall(cmsgpack.unpack, past)
      if ok and by == owner and (heard == channel or channel == '') then reply = fence end
    end
  end
  replies[i] = reply
end
return replies
