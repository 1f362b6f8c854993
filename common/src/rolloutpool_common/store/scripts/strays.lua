-- Put open rollouts of a batch back that are in no place (strays.py), and say which they were.
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
-- Put a batch, and its run, back in the line of a lane. An outbox is of use only while both stand there, and the lane is
-- known.
local function into_line(lane)
  local needs
  if lane ~= priority then
    local needed, others = unpack(redis.call('HMGET', k_batch(batch), 'needs', 'other_needs'))
    needs = needs_of(batch, redis.call('LINDEX', k_outbox(batch, lane), 0), needed, others)
  end
  local waits = is_paused(batch, run) or contains(k_runs(lane), run)
  if waits and contains(k_run(lane, run), batch) and (not needs or contains(k_lanes(priority), needs)) then return end
  if needs then
    redis.call('LREM', k_lanes(priority), 0, needs)
    redis.call('RPUSH', k_lanes(priority), needs)
  end
  redis.call('LREM', k_run(lane, run), 0, batch)
  redis.call('RPUSH', k_run(lane, run), batch)
  redis.call('LREM', k_runs(lane), 0, run)
  if not is_paused(batch, run) then redis.call('RPUSH', k_runs(lane), run) end
  count('strays')
  found[#found + 1] = { -1, 'queued', 0 }
end
local lanes = redis.call('SMEMBERS', k_batch(batch, 'lanes'))
lanes[#lanes + 1] = priority
for _, lane in ipairs(lanes) do
  if redis.call('EXISTS', k_outbox(batch, lane)) == 1 then into_line(lane) end
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
    for _, lane in ipairs(lanes) do
      for _, one in ipairs(redis.call('LRANGE', k_outbox(batch, lane), 0, -1)) do in_outbox[one] = true end
    end
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
    -- It waits in the stage of a capability, which knows where.
    local mended = {}
    -- @on_held(mended, uid, now)
    stray = #mended > 0
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
