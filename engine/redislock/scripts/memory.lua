-- Returns for how long the server is known to have kept its data, in ms. The server's clock cannot
-- prove that. So the first caller leaves a mark, which is lost with the rest of the data. A driver
-- that has seen the mark for a while, by a monotonic clock, adds that time to it. A server that was
-- restarted has another run id, so a mark that it has kept is void.
--
-- Returns the name of this memory, and the ms. life and known are the memory that the driver has
-- seen, and for how long; fresh and us make a name that no memory had before.
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
