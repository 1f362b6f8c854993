-- Give a rollout to a worker. ARGV: batch, index, worker, its role, claim token.
-- -> {'claimed', attempt, journal length, crashes, deadline ms | '', now ms, created ms, shared, overrides, room, clean,
--     group | '', infra retries, deferrals}
--  | {'gone' | 'ended' | 'taken' | 'expired' | 'isolated'}; `room` = 1 when the outboxes may have something to publish
local b, index, worker, role, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local uid = b .. '-' .. index
local meta = redis.call('HMGET', k_batch(b), 'priority', 'created_ms', 'shared', 'cancelled_ms')
local overrides = redis.call('HGET', k_batch(b, 'items'), index)
if not meta[1] or not overrides then return { 'gone' } end
if meta[4] then return { 'ended' } end
local state = redis.call('HMGET', k_rollout(uid), 'status', 'attempt', 'crashes', 'token', 'clean', 'retries', 'deferrals', 'deaths')
if TERMINAL[state[1] or ''] or redis.call('SISMEMBER', P .. 'precancelled', uid) == 1 then return { 'ended' } end
-- The same token again: this very claim was made, and its answer was lost.
local again = state[1] == 'running' and state[4] == token
-- Also where it is taken: this ticket was a second one, and whoever gives the rollout back makes another.
redis.call('ZREM', k_published(meta[1]), uid)
if state[1] == 'running' and not again then return { 'taken' } end
local now = now_ms()
local deadline = redis.call('HGET', k_batch(b, 'deadlines'), index) or ''
if deadline ~= '' and tonumber(deadline) <= now then return { 'expired' } end
-- Two workers died while they had it: a third must run nothing else. Until that claims it nobody has it; should it
-- never, the rollout is queued again. Of many the first ones get their turn: by chance some would never.
if suspicion(state[3], state[8]) >= 2 and role ~= 'isolated' then
  redis.call('ZADD', P .. 'suspects', 'NX', str(now), uid)
  local first = redis.call('ZRANK', P .. 'suspects', uid) < 2 * math.max(redis.call('ZCARD', P .. 'workers'), 1)
  local leased = redis.call('ZADD', P .. 'delayed', 'NX', str(now + (first and 30000 or 2000)), uid)
  return { first and leased == 1 and 'isolated' or 'taken' }
end
redis.call('ZREM', P .. 'delayed', uid)
local attempt = tonumber(state[2] or '0')
if not again then
  attempt = attempt + 1
  redis.call('HINCRBY', k_batch(b), 'running', 1)
  hold(uid, attempt, token, worker)
end
return {
  'claimed', attempt, redis.call('LLEN', k_rollout(uid, 'journal')), tonumber(state[3] or '0'), deadline, str(now),
  meta[2], meta[3], overrides, redis.call('EXISTS', k_runs(meta[1])), state[5] or '1',
  redis.call('HGET', k_batch(b, 'groups'), index) or '', tonumber(state[6] or '0'),
  tonumber(state[7] or '0'),
}
