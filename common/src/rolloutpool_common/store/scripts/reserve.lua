-- Take up to `limit` indexes out of the outboxes of one priority class, as long as fewer tickets of the class are
-- published than live workers need (`per_worker` each). Runs take turns, `weight` indexes a turn; a run's batches follow
-- each other. A turn that the window cuts short goes on when there is room again: places come free one by one, and runs
-- of unequal weight would else share them equally.
-- ARGV: priority, limit, per_worker, ms without a beat after which a worker counts as dead.
-- -> {now ms, batch, index, group, ...}
local priority, limit = ARGV[1], tonumber(ARGV[2])
local runs, published = k_runs(priority), k_published(priority)
local ms = now_ms()
local workers = redis.call('ZCOUNT', P .. 'workers', str(ms - tonumber(ARGV[4])), '+inf')
local room = math.min(limit, math.max(workers, 1) * tonumber(ARGV[3]) - redis.call('ZCARD', published))
local now = str(ms)
local out = { now }

-- The next index of a run that may be published; nil when its outboxes are empty.
local function next_of(batches)
  while true do
    local b = redis.call('LINDEX', batches, 0)
    if not b then return nil end
    local index = redis.call('LPOP', k_batch(b, 'outbox'))
    if redis.call('EXISTS', k_batch(b, 'outbox')) == 0 then redis.call('LPOP', batches) end
    if index then
      local state = redis.call('HGET', k_rollout(b .. '-' .. index), 'status')
      -- Who runs a rollout puts it back if need be.
      if not TERMINAL[state or ''] and state ~= 'running' then return b, index end
    end
  end
end

local begun = room > 0 and redis.call('GETDEL', k_turn(priority)) or ''
while room > 0 do
  local run = redis.call('LPOP', runs)
  if not run then break end
  local batches = k_run(priority, run)
  local first = redis.call('LINDEX', batches, 0)
  local turn = first and tonumber(redis.call('HGET', k_batch(first), 'weight') or '1') or 0
  local rest = string.match(begun, '^(%d+) ')
  if rest and begun == rest .. ' ' .. run then turn = tonumber(rest) end
  begun = ''
  while turn > 0 and room > 0 do
    local b, index = next_of(batches)
    if not b then break end
    redis.call('ZADD', published, now, b .. '-' .. index)
    out[#out + 1] = b
    out[#out + 1] = index
    out[#out + 1] = redis.call('HGET', k_batch(b, 'groups'), index) or ''
    turn, room = turn - 1, room - 1
  end
  if redis.call('EXISTS', batches) == 1 then
    if turn > 0 then redis.call('SET', k_turn(priority), str(turn) .. ' ' .. run, 'EX', 3600) end
    redis.call(turn > 0 and 'LPUSH' or 'RPUSH', runs, run)
  end
end
return out
