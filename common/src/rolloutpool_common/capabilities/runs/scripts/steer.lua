-- Change what is known of a run, and read it.
-- ARGV: run ('{owner}/{name}'), what (`announce`, `report`, `pause`, `resume`, `read`), version or '', 1 to allow a lower
-- version than before (announce), ms of the served clock after which the paused run is ended (pause).
-- Answer: outcome, then version, announced_ms, reported, paused_ms, left_ms ('' for what there is not). Outcomes: `ok`;
-- `lower`, the announced version is higher; `full`, too many runs are known; `unknown`, there is no such run.
--
-- While a run is paused:
-- 1. It stands in no list of runs, so none of its rollouts is published (enlist). Its own lists of batches stay.
-- 2. A ticket that is on its way is claimed in vain: the rollout goes back into its outbox (claim.lua).
-- 3. Workers ask before each model call whether the run is paused (worker: gate.py).
-- 4. When it is resumed, it is put at the end of each list in which it has something to publish. What waited in a stage of a
--    capability has the time that it had before.
local run, what, version, rollback, limit_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = k_steering(run)

local function state(outcome)
  local announced, at, reported, paused_ms = unpack(redis.call('HMGET', key, 'version', 'announced_ms', 'reported', 'paused_ms'))
  local due = paused_ms and redis.call('ZSCORE', P .. 'paused', run)
  return {
    'outcome', outcome,
    'version', announced or '',
    'announced_ms', at or '',
    'reported', reported or '',
    'paused_ms', paused_ms or '',
    'left_ms', due and str(math.max(tonumber(due) - served_ms(), 0)) or '',
  }
end

if what == 'announce' or what == 'pause' then
  if not keep_run(run) then return state('full') end
elseif redis.call('EXISTS', key) == 0 then
  return state('unknown')
end
if what == 'announce' then
  local before = redis.call('HGET', key, 'version')
  if before and tonumber(version) < tonumber(before) and rollback ~= '1' then return state('lower') end
  if before ~= version then redis.call('HSET', key, 'version', version, 'announced_ms', str(now_ms())) end
elseif what == 'report' then
  local before = redis.call('HGET', key, 'reported')
  if not before or tonumber(version) > tonumber(before) then redis.call('HSET', key, 'reported', version) end
elseif what == 'pause' then
  -- A pause that is said again lasts longer, as of now.
  redis.call('ZADD', P .. 'paused', str(served_ms() + tonumber(limit_ms)), run)
  if redis.call('HSETNX', key, 'paused_ms', str(now_ms())) == 1 then
    for _, lane in ipairs(all_lanes()) do redis.call('LREM', k_runs(lane), 0, run) end
    count('pauses')
  end
elseif what == 'resume' then
  local paused_ms = redis.call('HGET', key, 'paused_ms')
  resume_run(run)
  if paused_ms then
    -- @on_resume(run, paused_ms)
  end
end
-- Once more, because a paused run is kept for longer.
if what ~= 'read' then keep_run(run) end
return state('ok')
