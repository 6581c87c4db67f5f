-- Included by all scripts that use more than the lock key.

-- The server's time, in microseconds and in milliseconds.
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)

-- No owner has a control character, so no owner equals these values of the lock key. EXACT is 2^53,
-- where Lua's numbers stop being exact. take.lua, which does not include this, repeats it.
local SHARED, LINGER = '\31shared', '\31linger'
local EXACT = 9007199254740992

-- Sharers with a weight above 1 are in weights, by their weight. There the score of EXTRA is by how
-- much all of them weigh more than their number, so that no script must add them up. In limits they
-- are represented by HEAVY with a limit of 1. So programs that know no weights, and count sharers,
-- grant nothing beside them. If such a program removes a sharer that died, its weight counts until
-- all sharers are gone.
local EXTRA, HEAVY = '\31extra', '\31heavy'

-- In beats, SINCE and a channel have the negative instant since which no beat came more than PLACE
-- after another. A place that had expired by then stays so, because its driver may not know it.
local SINCE = '\31since'

-- Whether the holder behind a channel wants to know that another waits.
local function wants(channel) return string.sub(channel, 1, 12) == 'leasehold:r:' end

-- A field in the details if one of the sharers may have such a channel.
local ASKED = 'r'

-- decode returns true and the values that cmsgpack stored, of the kinds n, a number that a record
-- may have, and s, a string. It returns false if they are missing, damaged, or of another version.
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

-- A waiter's values: expiry of its place, mode, limit, channel, first Try, note, last Try, its
-- number, TTL (0: grant only by a Try), channel for the end of the lease, life of the history. A
-- sharer's values: fence, granted, limit, channel, note.
local WAITER, SHARER = 'nsnsnsnsnss', 'nnnss'

-- The history of a resource: the last fence given, and of the last exclusive grant its fence,
-- instant, owner, channel and note. recall uses history, the key. Its seventh value is whether the
-- history is damaged.
local function recall(past)
  if not past then return 0, 0, 0, '', '', '', false end
  if #past < 24 then return 0, 0, 0, '', '', '', true end
  local last, fence, since = struct.unpack('>I8I8I8', past)
  if last > EXACT then return 0, 0, 0, '', '', '', true end -- no script writes that
  local ok, by, channel, note = decode('sss', string.sub(past, 25))
  if not ok or fence > EXACT or since > EXACT then return last, 0, 0, '', '', '', true end
  return last, fence, since, by, channel, note, false
end

-- For how long an exclusive grant has been held: 0 if the history, and since with it, was lost.
local function held_for(since) return since > 0 and ms - since or 0 end

-- For how long a history is kept. If its fence is ahead of the clock, that much longer.
local function life_of(last, life) return life + math.max(0, math.floor(last / 1000) - ms) end

-- Writes the history. life is in ms; '0': for ever; '': as before. A history that lives longer, or
-- never expires, stays so: a hold may last for longer.
local function remember(life, last, fence, since, by, channel, note)
  local value = struct.pack('>I8I8I8', last, fence, since) .. cmsgpack.pack(by, channel, note)
  local left = redis.call('PTTL', history)
  if life == '' then
    redis.call('SET', history, value, 'KEEPTTL')
  elseif life == '0' or left == -1 then
    redis.call('SET', history, value)
  else
    redis.call('SET', history, value, 'PX', math.max(life_of(last, life), left))
  end
end

-- Returns a fence above the last one. If that was lost, it is still above all earlier fences,
-- because the clock has gone on.
local function next_fence(last, us)
  local n = math.max(last + 1, us)
  if n >= EXACT then return nil end
  return n
end
