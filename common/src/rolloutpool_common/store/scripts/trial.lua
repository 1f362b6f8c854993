-- Give an isolated worker its next cohort of suspects; it then holds the claims.
-- ARGV: worker, its parent, most that are tried together, whether one that needs company comes first (1) or who has waited
-- longest (0), token, ... (one for each rollout that it can run at once).
-- Answer: a list of {uid, token}; empty where no suspect waits.
--
-- 1. The first of the cohort is who has waited longest. Every other time it is who has waited longest among those that are
--    tried in company: so many are cleared at once, and do not wait behind a long row of those that are tried alone.
-- 2. The others are those who have waited longest of the same company. No group is stored: who shares it may change.
-- 3. The claims are made here, in one step, so that no suspect is tried twice at once. If the worker dies, the reconciler
--    finds all of them among its claims.
-- Example: 192 suspects, three workers: company 64, three cohorts. One child dies with 64: company 32, two cohorts.
local worker, parent, most, company_first = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local cohort, mine = {}, {}
for i = 5, #ARGV do mine[ARGV[i]] = true end
-- Claims with these tokens: this very call was made before, and its answer was lost.
for _, uid in ipairs(redis.call('SMEMBERS', k_worker(worker, 'claims'))) do
  local token = redis.call('HGET', k_rollout(uid), 'token')
  if mine[token or ''] then cohort[#cohort + 1] = { uid, token } end
end
if #cohort > 0 then return cohort end
-- It was declared dead, and has not noticed it yet.
if redis.call('ZSCORE', P .. 'condemned', worker) then return cohort end
-- It has started; its parent may start another when this one has ended (trial_place.lua).
redis.call('ZREM', P .. 'trials', parent)

local now = now_ms()
local waiting, companies = {}, {}
-- A thousand are enough for a cohort, and bound the time of this script.
for _, uid in ipairs(redis.call('ZRANGE', P .. 'suspects', 0, 999)) do
  local batch, index = string.match(uid, '^(.*)%-(%d+)$')
  local deadline_ms = redis.call('HGET', k_batch(batch, 'deadlines'), index)
  -- Those whose batch is being cancelled, or whose deadline has passed, are ended soon. They must not start meanwhile.
  -- One in a stage has no such deadline any more.
  local late = deadline_ms and tonumber(deadline_ms) <= now and redis.call('HEXISTS', k_rollout(uid), 'stage') == 0
  local cancelled, needs, others, run = unpack(redis.call(
    'HMGET', k_batch(batch), 'cancelled_ms', 'needs', 'other_needs', 'run'
  ))
  -- Nor those that need what this worker lacks: another one tries them. Those of a paused run could do nothing, and would
  -- come back to their places before all others.
  local stands = cancelled or late or is_paused(batch, run)
  if not stands and is_suited(worker, needs_of(batch, index, needs, others)) then
    waiting[#waiting + 1] = uid
    -- Of all of them before any is taken: with each cohort that is taken, fewer would be left to divide.
    companies[uid] = company_of(uid, most)
  end
end
local first = waiting[1]
if not first then return cohort end
for _, uid in ipairs(company_first and waiting or {}) do
  if companies[uid] > 1 then
    first = uid
    break
  end
end

local function take(uid)
  local batch = string.match(uid, '^(.*)%-%d+$')
  local token = ARGV[5 + #cohort]
  -- For one that is suspected for all that ever died with it: its company stands nowhere else.
  redis.call('HSET', k_rollout(uid), 'company', companies[uid])
  count_claimed(batch, uid, 1)
  hold(uid, tonumber(redis.call('HGET', k_rollout(uid), 'attempt') or '0') + 1, token, worker, epoch())
  cohort[#cohort + 1] = { uid, token }
end

take(first)
for _, uid in ipairs(waiting) do
  if #cohort >= math.min(companies[first], #ARGV - 4) then break end
  if uid ~= first and companies[uid] == companies[first] then take(uid) end
end
return cohort
