-- What the scripts of runs share, and their part in the kernel's (`runs_on_…`). A run is '{owner}/{name}'.
local function k_steering(run) return P .. 'steering:' .. run end

-- Keep what is known of a run for another week, or as long as it is paused. Answer: false where too many runs are known and
-- this one is not among them.
local function keep_run(run)
  local now, week, most, key = now_ms(), 7 * 86400000, 10000, k_steering(run)
  redis.call('ZREMRANGEBYSCORE', P .. 'known_runs', '-inf', '(' .. str(now - week))
  if redis.call('EXISTS', key) == 0 and redis.call('ZCARD', P .. 'known_runs') >= most then return false end
  redis.call('ZADD', P .. 'known_runs', str(now), run)
  redis.call('HSETNX', key, 'since_ms', str(now))
  if redis.call('HEXISTS', key, 'paused_ms') == 1 then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, week) end
  return true
end

-- End the pause of a run, if it is paused: it takes its turns again, after the others.
local function resume_run(run)
  redis.call('ZREM', P .. 'paused', run)
  if redis.call('HDEL', k_steering(run), 'paused_ms') == 0 then return end
  for _, lane in ipairs(all_lanes()) do
    redis.call('LREM', k_runs(lane), 0, run)
    if redis.call('EXISTS', k_run(lane, run)) == 1 then redis.call('RPUSH', k_runs(lane), run) end
  end
end

-- Where too many runs are known, this one runs all the same, and nothing is known of it.
local function runs_on_commit(batch, run)
  if run ~= batch then keep_run(run) end
end

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

-- It began again with newer weights.
local function runs_on_release(batch, counter)
  if counter ~= 'stale' then return end
  redis.call('HINCRBY', k_batch(batch), 'stale:restarted', 1)
  count('stale:restarted')
end

-- Some runs are paused, and perhaps for too long.
local function runs_on_lead(chores)
  if redis.call('EXISTS', P .. 'paused') == 1 then chores[#chores + 1] = 'runs' end
end
