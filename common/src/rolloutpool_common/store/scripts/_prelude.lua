-- Shared by every script: key names (twin of keys.py), the clock, and the one way in which a rollout ends.
-- Undeclared keys are fine: Redis Cluster is not supported, because kombu's transport is not made for it.
local P = 'rp:'
local function k_batch(b, part) return part and (P .. 'batch:' .. b .. ':' .. part) or (P .. 'batch:' .. b) end
local function k_rollout(u, part) return part and (P .. 'rollout:' .. u .. ':' .. part) or (P .. 'rollout:' .. u) end
local function k_worker(w, part) return part and (P .. 'worker:' .. w .. ':' .. part) or (P .. 'worker:' .. w) end
local function k_runs(priority) return P .. 'runs:' .. priority end
local function k_run(priority, run) return P .. 'run:' .. priority .. ':' .. run end
local function k_turn(priority) return P .. 'turn:' .. priority end
local function k_name(owner, name) return P .. 'name:' .. owner .. ':' .. name end
local function k_published(priority) return P .. 'published:' .. priority end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function str(n) return string.format('%.0f', n) end

-- Add to what the pool has done since its Redis was made.
local function count(name, n) redis.call('HINCRBY', P .. 'totals', name, n or 1) end

local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }

-- How many workers a rollout is suspected of having killed: those that died with it since it last got anywhere, and
-- most of all that ever did, because one that dies a little later each time would never end.
local function suspicion(crashes, deaths)
  return math.max(tonumber(crashes or '0'), tonumber(deaths or '0') - 8)
end

-- Forget who ran it: claims, stop hints and the published ticket.
local function detach(uid, worker, priority)
  if worker and worker ~= '' then
    redis.call('SREM', k_worker(worker, 'claims'), uid)
  end
  redis.call('ZREM', k_published(priority), uid)
end

-- Make a rollout this worker's.
local function hold(uid, attempt, token, worker)
  local now = str(now_ms())
  redis.call('HSET', k_rollout(uid), 'status', 'running', 'attempt', attempt, 'token', token, 'worker', worker, 'claimed', now)
  redis.call('SADD', k_worker(worker, 'claims'), uid)
  redis.call('ZREM', P .. 'suspects', uid)
  -- Who has claims is watched, even if it was declared dead a moment ago and has not noticed.
  redis.call('ZADD', P .. 'workers', 'NX', now, worker)
end

-- Let a batch with something in its outbox take its turn: in front of its run's batches or behind them, and its run
-- among the runs.
local function enlist(b, run, priority, front)
  redis.call('LREM', k_run(priority, run), 0, b)
  if redis.call(front and 'LPUSH' or 'RPUSH', k_run(priority, run), b) == 1 then
    redis.call('LREM', k_runs(priority), 0, run)
    redis.call(front and 'LPUSH' or 'RPUSH', k_runs(priority), run)
  end
end

-- Put an index back in front of its batch's outbox.
local function to_outbox(b, index, priority)
  if redis.call('LPUSH', k_batch(b, 'outbox'), index) == 1 then
    enlist(b, redis.call('HGET', k_batch(b), 'run'), priority, true)
  end
end

-- Count an ended rollout in its group; a group that has enough, or can't get enough, has its verdict for good.
local function count_in_group(b, index, status, min_usable, late)
  local group = redis.call('HGET', k_batch(b, 'groups'), index)
  if not group then return end
  local counts = k_batch(b, 'group_counts')
  redis.call('HINCRBY', counts, status .. ':' .. group, 1)
  if redis.call('HEXISTS', counts, 'verdict:' .. group) == 1 then return end
  local function n(what) return tonumber(redis.call('HGET', counts, what .. ':' .. group) or '0') end
  local verdict
  if n('completed') >= min_usable then
    verdict = 'usable'
  elseif n('size') - n('failed') - n('cancelled') - n('expired') < min_usable then
    verdict = 'dropped'
  end
  if not verdict then return end
  redis.call('HSET', counts, 'verdict:' .. group, verdict)
  if late == 'cancel' then redis.call('SADD', P .. 'late', b .. ' ' .. group) end
end

-- The only place where a rollout becomes terminal. `counts` = {field, increment, ...} of the batch hash and the totals.
local function end_rollout(b, index, status, result, counts)
  local uid = b .. '-' .. index
  local was = redis.call('HMGET', k_rollout(uid), 'status', 'worker')
  local meta = redis.call(
    'HMGET', k_batch(b), 'priority', 'total', 'push', 'idem', 'v1', 'min_usable', 'late', 'run', 'retention_ms'
  )
  local now = now_ms()
  if was[1] == 'running' then redis.call('HINCRBY', k_batch(b), 'running', -1) end
  detach(uid, was[2], meta[1])
  redis.call('HSET', k_rollout(uid), 'status', status, 'ended', str(now))
  redis.call('HDEL', k_rollout(uid), 'token')
  redis.call('SET', k_rollout(uid, 'result'), result)
  redis.call('DEL', k_rollout(uid, 'journal'))
  redis.call('ZREM', P .. 'deadlines', uid)
  redis.call('SREM', P .. 'precancelled', uid)
  redis.call('ZREM', P .. 'delayed', uid)
  redis.call('ZREM', P .. 'suspects', uid)
  if redis.call('DECR', P .. 'open') <= 0 then redis.call('DEL', P .. 'open') end
  if meta[6] then count_in_group(b, index, status, tonumber(meta[6]), meta[7]) end
  for i = 1, #counts, 2 do
    redis.call('HINCRBY', k_batch(b), counts[i], counts[i + 1])
    count(counts[i], counts[i + 1])
  end
  redis.call('HINCRBY', k_batch(b), status, 1)
  count('status:' .. status)
  local ended = redis.call('HINCRBY', k_batch(b), 'ended', 1)
  redis.call('XADD', k_batch(b, 'done'), '*', 'index', index, 'status', status)
  if meta[3] then
    redis.call('ZADD', P .. 'push:due', str(now), uid)
    redis.call('HINCRBY', k_batch(b), 'push:pending', 1)
  end
  if ended == tonumber(meta[2]) then
    redis.call('HSET', k_batch(b), 'finished_ms', str(now))
    redis.call('LREM', k_run(meta[1], meta[8]), 0, b)
    if redis.call('EXISTS', k_run(meta[1], meta[8])) == 0 then redis.call('LREM', k_runs(meta[1]), 0, meta[8]) end
    redis.call('ZADD', P .. 'ended', str(now + tonumber(meta[9])), b)
    if meta[4] then redis.call('PEXPIRE', meta[4], meta[5] and 600000 or meta[9]) end
  end
  redis.call('XADD', P .. 'finished', 'MAXLEN', '~', '10000', '*', 'batch', b)
end
