-- For how long the server is known to remember all that it was told, in ms. No clock of its
-- own can tell: who asks first leaves a mark, which goes with the rest when it forgets; who
-- has seen it for a while, on a clock that only goes forward, adds that to it. A server
-- that was started again has another run id, so that a mark which it kept is void.
-- Returns the name of this memory, and the ms. ARGV of the caller tell life and known, of the
-- memory that it has seen; fresh and us make a name that no memory had before.
local function remembers(mark, life, known, fresh, us)
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  local of, name, ms = string.match(redis.call('GET', mark) or '', '^(%w+) (%S+) (%d+)$')
  ms = tonumber(ms)
  if of ~= run then
    if not fresh or run == '' then return '', 0 end
    of, name, ms = run, string.format('%s-%.0f', fresh, us), -1
  end
  local proven = math.max(ms, name == life and tonumber(known) or 0)
  if proven > ms then redis.call('SET', mark, string.format('%s %s %.0f', of, name, proven)) end
  return name, proven
end
