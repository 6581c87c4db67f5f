-- What all scripts agree on. No owner has a control character, so these values of the lock key are nobody's. EXACT is
-- 2^53, where Lua's numbers stop being exact; take.lua, which includes nothing, has it too.
local SHARED, LINGER = '\31shared', '\31linger'
local EXACT = 9007199254740992

-- A sharer that weighs more than 1 stands in weights, by its weight. There EXTRA has by how much all of them weigh more
-- than their number, so that nobody has to add them up. In limits HEAVY stands for them, as one who lets nobody beside it:
-- programs that know no weights count heads, and stay away. Where such a program has forgotten one that died, its weight
-- counts until all are gone.
local EXTRA, HEAVY = '\31extra', '\31heavy'

-- Whether a holder's channel tells it, too, when another waits.
local function wants(channel) return string.sub(channel, 1, 12) == 'leasehold:r:' end

-- What is stored beside sharers if one of them may have such a channel.
local ASKED = 'r'

-- decode returns true and what cmsgpack stored, which kinds tells: n a number that a record
-- can have, s a string. false: it is missing, damaged, or of another version.
local function decode(kinds, stored)
  if type(stored) ~= 'string' then return false end
  local found = {pcall(cmsgpack.unpack, stored)}
  if not found[1] or #found ~= #kinds + 1 then return false end
  for i = 1, #kinds do
    local v = found[i + 1]
    if kinds:sub(i, i) == 's' then
      if type(v) ~= 'string' then return false end
    elseif type(v) ~= 'number' or not (v >= 0 and v <= EXACT) then
      return false
    end
  end
  return unpack(found)
end

-- What is stored of a waiter: expiry of its place, mode, limit, channel, first Try, note,
-- last Try, its number, TTL (0: not to be granted without a Try), channel for the end of
-- the lease, life of the history. Of a sharer: fence, granted, limit, channel, note.
local WAITER, SHARER = 'nsnsnsnsnss', 'nnnss'

-- How the history of a resource is kept: the last fence given, and of the last exclusive
-- grant its fence, instant, owner, channel and note. It uses history, the key, and ms (the
-- server's time). The seventh value is whether somebody damaged it.
local function recall(past)
  if not past then return 0, 0, 0, '', '', '', false end
  if #past < 24 then return 0, 0, 0, '', '', '', true end
  local last, fence, since = struct.unpack('>I8I8I8', past)
  if last > EXACT then return 0, 0, 0, '', '', '', true end -- no script writes that
  local ok, by, channel, note = decode('sss', string.sub(past, 25))
  if not ok or fence > EXACT or since > EXACT then return last, 0, 0, '', '', '', true end
  return last, fence, since, by, channel, note, false
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
local function next_fence(last, us)
  local n = math.max(last + 1, us)
  if n >= EXACT then return nil end
  return n
end
