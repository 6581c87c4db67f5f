-- How the history of a resource is kept: the last fence given, and of the last exclusive
-- grant its fence, instant, owner, channel and note. It uses history, the key, and ms (the
-- server's time).
local function recall(past)
  if not past or #past < 24 then return 0, 0, 0, '', '', '' end
  local last, fence, since = struct.unpack('>I8I8I8', past)
  if last > 9007199254740992 then return 0, 0, 0, '', '', '' end -- no script writes that
  local ok, _, by, channel, note = pcall(cmsgpack.unpack_limit, past, 3, 24)
  if not ok then return last, 0, 0, '', '', '' end -- somebody damaged it
  return last, fence, since, by, channel, note
end

-- For how long a history is kept: a fence that is ahead of the clock for as much longer.
local function life_of(last, life) return life + math.max(0, math.floor(last / 1000) - ms) end

-- life is in ms, '0': for ever, '': as it was.
local function remember(life, last, fence, since, by, channel, note)
  local value = struct.pack('>I8I8I8', last, fence, since) .. cmsgpack.pack(by, channel, note)
  if life == '' then
    redis.call('SET', history, value, 'KEEPTTL')
  elseif life == '0' then
    redis.call('SET', history, value)
  else
    redis.call('SET', history, value, 'PX', life_of(last, life))
  end
end

-- Above the last one, and above all former ones if that was lost: the clock has gone on.
-- 2^53 is where Lua's numbers stop being exact.
local function next_fence(last, us)
  local n = math.max(last + 1, us)
  if n >= 9007199254740992 then return nil end
  return n
end
