-- Put open rollouts of a batch back that are in no place (places.py), and say which they were.
-- ARGV: batch, first index, last index.
-- Answer: a list of {index, status before, attempt}; an index of -1 stands for the batch, which was in no line.
local batch, first, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local priority, run, total, cancelled_ms, finished_ms = unpack(redis.call(
  'HMGET', k_batch(batch), 'priority', 'run', 'total', 'cancelled_ms', 'finished_ms'
))
-- An ended batch may have second entries in its outbox, which are of no use to anybody.
if not total or finished_ms then return {} end
local found, now = {}, now_ms()
if cancelled_ms then
  -- Whoever cancels it ends all of it, or the reconciler does, by this set.
  if redis.call('SADD', P .. 'cancelling', batch) == 1 then
    count('strays')
    found[1] = { -1, 'cancelled', 0 }
  end
  return found
end

local function contains(list, element)
  for _, one in ipairs(redis.call('LRANGE', list, 0, -1)) do
    if one == element then return true end
  end
  return false
end
-- An outbox is of use only while its batch stands in its run's list, and the run in the list of its class.
if redis.call('EXISTS', k_batch(batch, 'outbox')) == 1 then
  local in_line = contains(k_run(priority, run), batch) and (is_paused(run) or contains(k_runs(priority), run))
  if not in_line then
    redis.call('LREM', k_run(priority, run), 0, batch)
    redis.call('RPUSH', k_run(priority, run), batch)
    redis.call('LREM', k_runs(priority), 0, run)
    if not is_paused(run) then redis.call('RPUSH', k_runs(priority), run) end
    count('strays')
    found[1] = { -1, 'queued', 0 }
  end
end

local in_outbox
local function waits(uid, index)
  for _, place in ipairs({ k_published(priority), P .. 'delayed', P .. 'suspects' }) do
    if redis.call('ZSCORE', place, uid) then return true end
  end
  local deadline = redis.call('ZSCORE', P .. 'deadlines', uid)
  if (deadline and tonumber(deadline) <= now) or redis.call('SISMEMBER', P .. 'precancelled', uid) == 1 then return true end
  if not in_outbox then
    in_outbox = {}
    for _, one in ipairs(redis.call('LRANGE', k_batch(batch, 'outbox'), 0, -1)) do in_outbox[one] = true end
  end
  return in_outbox[str(index)]
end

for index = first, math.min(last, tonumber(total) - 1) do
  local uid = batch .. '-' .. str(index)
  local known = redis.call(
    'HMGET', k_rollout(uid), 'status', 'worker', 'held', 'leads', 'attempt', 'crashes', 'strikes', 'deaths'
  )
  local status, worker, held, leads, attempt = unpack(known, 1, 5)
  local stray = false
  if status == 'running' then
    -- Among the claims of a listed worker it is found: by the worker, which gives back what it does not run, or, if that
    -- is dead, by the reconciler.
    stray = redis.call('SADD', k_worker(worker, 'claims'), uid) == 1
    stray = redis.call('ZADD', P .. 'workers', 'NX', str(now), worker) == 1 or stray
  elseif TERMINAL[status or ''] then
    stray = false
  elseif held and not leads then
    -- At its grader's deadline the reconciler delivers it.
    stray = redis.call('ZADD', P .. 'grading', 'NX', str(now), uid) == 1
  elseif not waits(uid, index) then
    stray = true
    if suspicion(unpack(known, 6, 8)) >= 2 then to_suspects(uid) else to_outbox(batch, str(index), priority) end
  end
  if stray then
    count('strays')
    found[#found + 1] = { index, status or 'never claimed', tonumber(attempt or '0') }
  end
end
return found
