-- Put in front of every script: key names (the twin of keys.py), the clock, and the steps that several scripts share.
--
-- A script runs alone in Redis, so what it reads stays true until it has written. Every script may arrive twice, because
-- a call whose answer was lost is repeated; the second arrival must change nothing.
-- A script with several answers returns one flat list {name, value, name, value, ...}; `answers.named` reads it.
-- Times are milliseconds since 1970 on Redis' own clock. Keys are not declared, because Redis Cluster is not supported.
local P = 'rp:'
local function k_batch(batch, part) return part and (P .. 'batch:' .. batch .. ':' .. part) or (P .. 'batch:' .. batch) end
local function k_rollout(uid, part) return part and (P .. 'rollout:' .. uid .. ':' .. part) or (P .. 'rollout:' .. uid) end
local function k_worker(worker, part)
  return part and (P .. 'worker:' .. worker .. ':' .. part) or (P .. 'worker:' .. worker)
end
local function k_runs(priority) return P .. 'runs:' .. priority end
local function k_run(priority, run) return P .. 'run:' .. priority .. ':' .. run end
local function k_turn(priority) return P .. 'turn:' .. priority end
local function k_name(owner, name) return P .. 'name:' .. owner .. ':' .. name end
-- The lists of batches: everybody's, or one owner's. Rollouts of protocol v1 have lists of their own.
local function k_batches(v1, owner)
  local list = v1 and (P .. 'batches_v1') or (P .. 'batches')
  return owner and (list .. ':' .. owner) or list
end
local function k_published(priority) return P .. 'published:' .. priority end
-- Where the rollouts of a batch wait that belong to a lane: a priority class, or a part of one (_lanes.lua).
local function k_outbox(batch, lane) return k_batch(batch, 'outbox' .. (string.match(lane, '~.*') or '')) end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A whole number as text: Lua would write large ones as 1e+15.
local function str(n) return string.format('%.0f', n) end

-- Add to the pool's totals (totals.py), which only grow.
local function count(name, n) redis.call('HINCRBY', P .. 'totals', name, n or 1) end

local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }

-- How many workers this rollout is suspected of having killed: from 2 on it is a suspect, from 4 on it is poison. `crashes`:
-- workers that died with it since its last progress; at most two of them count, because others ran there as well.
-- `strikes`: trials without company in which its worker died. `deaths`: all that ever died with it; this number catches a
-- rollout that makes a little progress before each crash.
local function suspicion(crashes, strikes, deaths)
  return math.max(
    math.min(tonumber(crashes or '0'), 2) + tonumber(strikes or '0'), tonumber(deaths or '0') - 8
  )
end

-- Let a suspect wait for an isolated worker (trial.lua). It is in no outbox meanwhile, because no ticket may bring it to a
-- shared worker. Its place in the list is by the time of its first suspicion, also when it comes back from a trial.
local function to_suspects(uid)
  redis.call('HSETNX', k_rollout(uid), 'suspected_ms', str(now_ms()))
  redis.call('ZREM', P .. 'delayed', uid)
  redis.call('ZADD', P .. 'suspects', redis.call('HGET', k_rollout(uid), 'suspected_ms'), uid)
end

-- Clear a suspect: it made progress, or it failed in an isolated worker without killing it.
local function clear(uid) redis.call('HDEL', k_rollout(uid), 'crashes', 'company', 'strikes', 'suspected_ms', 'ends') end

-- Whether any turn of a batch may be asked again although it may have been answered: its submit has noted which trainers have
-- to promise that this is safe (model_calls.py), and all of them have, in this batch.
local function may_repeat(batch)
  local promisers = redis.call('HGET', k_batch(batch), 'promisers')
  if not promisers then return false end
  for trainer in string.gmatch(promisers, '%S+') do
    if redis.call('SISMEMBER', k_batch(batch, 'idempotent'), trainer) == 0 then return false end
  end
  return true
end

-- Among how many, itself included, a suspect may be tried. Decided once, when it is first looked at: the suspects are
-- divided evenly over the workers that can try them, but at most `most` are tried together. One whose turn must perhaps not
-- be asked again is tried alone, because a neighbour that kills their worker would leave its turn in doubt. So is one that is
-- suspected for all that ever died with it.
local function company_of(uid, most)
  local crashes, company = unpack(redis.call('HMGET', k_rollout(uid), 'crashes', 'company'))
  if suspicion(crashes, 0, 0) < 2 then return 1 end
  if company then return tonumber(company) end
  company = 1
  if may_repeat(string.match(uid, '^(.*)%-%d+$')) then
    local places = math.max(redis.call('ZCARD', P .. 'workers') - redis.call('SCARD', P .. 'isolated'), 1)
    company = math.max(1, math.min(most, math.ceil(redis.call('ZCARD', P .. 'suspects') / places)))
  end
  redis.call('HSET', k_rollout(uid), 'company', company)
  return company
end

-- Remove a rollout from its worker's claims and from the published tickets.
local function detach(uid, worker, priority)
  if worker and worker ~= '' then
    redis.call('SREM', k_worker(worker, 'claims'), uid)
  end
  redis.call('ZREM', k_published(priority), uid)
end

-- The number of Redis' current start (epoch.lua).
local function epoch() return redis.call('HGET', P .. 'epoch', 'number') or '0' end

-- Give the claim on a rollout to a worker. `uncalled` is the epoch of a claim under which no model call was sent, else ''.
local function hold(uid, attempt, token, worker, uncalled)
  local now = str(now_ms())
  redis.call(
    'HSET', k_rollout(uid), 'status', 'running', 'attempt', attempt, 'token', token, 'worker', worker, 'claimed', now,
    'uncalled', uncalled
  )
  redis.call('SADD', k_worker(worker, 'claims'), uid)
  redis.call('ZREM', P .. 'suspects', uid)
  -- A worker that Redis has forgotten (a restart, or it was declared dead) may restore its claim before its next beat. It
  -- is put back among the workers, so that its claims are found if it dies.
  redis.call('ZADD', P .. 'workers', 'NX', now, worker)
end

-- Whether the run of a batch is paused, so that it takes no turns and nothing of it is published. A batch without a run has its
-- own id in the place of one.
local function is_paused(batch, run) return run ~= batch and redis.call('ZSCORE', P .. 'paused', run) end

-- Milliseconds for which the pool was there for its callers (tick.lua). Leases and pauses end by this clock.
local function served_ms() return tonumber(redis.call('HGET', P .. 'served', 'clock_ms') or '0') end

-- Whether callers have not had the time to come back since the pool was not there for them: then nothing ends (tick.lua).
local function is_quiet() return served_ms() < tonumber(redis.call('HGET', P .. 'served', 'quiet_ms') or '0') end

-- Let a batch's place in a list of leases last so many ms from now on.
local function put_off(leases, batch, lease_ms)
  local due = str(served_ms() + tonumber(lease_ms))
  -- The clock stands still between two ticks, so most reads have nothing to write.
  if redis.call('ZSCORE', leases, batch) ~= due then redis.call('ZADD', leases, due, batch) end
end

-- A batch is read by its owner, so its lease lasts from now on again. One that tick.lua has found over stays over.
local function renew_lease(batch)
  local lease_ms, finished, cancelled = unpack(redis.call('HMGET', k_batch(batch), 'lease_ms', 'finished_ms', 'cancelled_ms'))
  if not lease_ms or finished or cancelled then return end
  put_off(P .. 'leases', batch, lease_ms)
end

-- Begin to cancel a batch, for a reason in one word. From now on none of its rollouts can start; `cancellation.py` ends
-- them, and if it stops in the middle, the reconciler goes on with it.
local function begin_cancel(batch, cause)
  redis.call('UNLINK', k_batch(batch, 'outbox'))
  for _, lane in ipairs(redis.call('SMEMBERS', k_batch(batch, 'lanes'))) do redis.call('UNLINK', k_outbox(batch, lane)) end
  redis.call('HSET', k_batch(batch), 'cancelled_ms', str(now_ms()))
  if redis.call('HSETNX', k_batch(batch), 'cancel_cause', cause) == 1 then count('cancelled_for:' .. cause) end
  redis.call('SADD', P .. 'cancelling', batch)
end

-- Queue a batch with a non-empty outbox in a lane among its run's batches there, and the run among the lane's runs: at the
-- front of both, or at the end.
local function enlist(batch, run, lane, front)
  -- The batch may stand there already, and must not get two places. A list that has one element now was empty, so the run
  -- stood in no list. A paused run stands in none; it comes back when it is resumed.
  redis.call('LREM', k_run(lane, run), 0, batch)
  if redis.call(front and 'LPUSH' or 'RPUSH', k_run(lane, run), batch) == 1 and not is_paused(batch, run) then
    redis.call('LREM', k_runs(lane), 0, run)
    redis.call(front and 'LPUSH' or 'RPUSH', k_runs(lane), run)
  end
end

-- Put a rollout back at the front of its batch's outbox.
local function to_outbox(batch, index, priority)
  -- The outbox was empty, so the batch stood in no list of its run.
  if redis.call('LPUSH', k_batch(batch, 'outbox'), index) == 1 then
    enlist(batch, redis.call('HGET', k_batch(batch), 'run'), priority, true)
  end
end

-- Count a claimed rollout in its batch, or take it out: among those that run, unless it is in a stage of a capability
-- (capability.py).
local function count_claimed(batch, uid, n)
  if redis.call('HEXISTS', k_rollout(uid), 'stage') == 0 then redis.call('HINCRBY', k_batch(batch), 'running', n) end
end

-- Count an ended rollout in its group. The first time that a group has enough usable rollouts, or can no longer get
-- enough, it gets its verdict, which never changes.
local function count_in_group(batch, index, status, min_usable, late)
  local group = redis.call('HGET', k_batch(batch, 'groups'), index)
  if not group then return end
  local counts = k_batch(batch, 'group_counts')
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
  count('group:' .. verdict)
  if late == 'cancel' then redis.call('SADD', P .. 'late', batch .. ' ' .. group) end
end

-- Wake those who wait for a rollout of a batch to end. Only the newest signals are kept: a reader that missed some wakes
-- all of its waiters (signals.py). With `~` Redis cuts whole blocks of the stream, which costs it less.
local function wake(batch) redis.call('XADD', P .. 'finished', 'MAXLEN', '~', '10000', '*', 'batch', batch) end

-- Which capabilities a batch uses, where they are not those of this script: the answer by which `Connection` learns that it has
-- to send another one. HAVING is what this script has; MARKS are fields of a batch's hash, USES what each of them says
-- unless it is the batch's own id.
local function other_capabilities(batch)
  local used, marks = '', #MARKS > 0 and redis.call('HMGET', k_batch(batch), unpack(MARKS)) or {}
  for i, name in ipairs(USES) do
    if marks[i] and marks[i] ~= batch then used = used .. ' ' .. name end
  end
  return used ~= HAVING and { 'capabilities', used }
end
