-- The part of runs in the kernel's scripts (`runs_on_…`).

-- `run`: as `run_key` names it. `max_staleness` and `on_stale`: how old its weights may be, '' where its batch does not say it.
-- `restarts`: how often it has begun again because they were older.
local function runs_on_claim(notes, uid, _, batch)
  local run, max_staleness, on_stale = unpack(redis.call('HMGET', k_batch(batch), 'run', 'max_staleness', 'on_stale'))
  local restarts = tonumber(redis.call('HGET', k_rollout(uid), 'stale') or '0')
  for _, one in ipairs({
    'run', run, 'max_staleness', max_staleness or '', 'on_stale', on_stale or '', 'restarts', restarts
  }) do
    notes[#notes + 1] = one
  end
end
