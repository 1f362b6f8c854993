-- Requeue a running rollout; its journal stays. ARGV: batch, index, claim token or '', worker or '', counter or '',
-- 1 clean | 0 a model call may be in flight, ms until it may run again, role of its worker or ''.
-- By its holder (token: drain, retry) or by the reconciler (worker: only if that worker still has it).
-- -> the counter's new value (of crashes: how many it is suspected of), 0 without counter, -1 fenced
local b, index, token, worker, counter, clean = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local uid = b .. '-' .. index
local state = redis.call('HMGET', k_rollout(uid), 'status', 'token', 'worker')
if state[1] ~= 'running' or (token ~= '' and state[2] ~= token) or (worker ~= '' and state[3] ~= worker) then
  if worker ~= '' then redis.call('SREM', k_worker(worker, 'claims'), uid) end
  return -1
end
local priority = redis.call('HGET', k_batch(b), 'priority')
redis.call('HSET', k_rollout(uid), 'status', 'queued', 'clean', clean)
if token == '' then redis.call('SADD', k_worker(state[3], 'stop'), state[2]) end
redis.call('HDEL', k_rollout(uid), 'token', 'worker')
redis.call('HINCRBY', k_batch(b), 'running', -1)
detach(uid, state[3], priority)
if tonumber(ARGV[7]) > 0 then
  redis.call('ZADD', P .. 'delayed', str(now_ms() + tonumber(ARGV[7])), uid)
else
  to_outbox(b, index, priority)
end
count('requeued:' .. (counter ~= '' and counter or 'drains'))
if counter == '' then return 0 end
local counted = redis.call('HINCRBY', k_rollout(uid), counter, 1)
if counter ~= 'crashes' then
  -- It failed alone and killed nobody.
  if ARGV[8] == 'isolated' then redis.call('HDEL', k_rollout(uid), 'crashes') end
  return counted
end
return suspicion(counted, redis.call('HINCRBY', k_rollout(uid), 'deaths', 1))
