-- Give a claim back to the worker that runs it, where Redis forgot the claim because it lost its last second.
-- ARGV: batch, index, worker, token of the claim, attempt, whether the records are the whole journal (1) or are not known
-- (0), number of turns, record, ...
-- Answer: 1 if the claim is the worker's (again), else 0.
local batch, index, worker, token, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local uid = batch .. '-' .. index
local priority, cancelled_ms, deleting = unpack(redis.call(
  'HMGET', k_batch(batch), 'priority', 'cancelled_ms', 'deleting'
))
local status, attempts, holder_token, holder = unpack(redis.call(
  'HMGET', k_rollout(uid), 'status', 'attempt', 'token', 'worker'
))
if holder_token == token then return 1 end
-- While a batch is deleted, one that has ended looks as if it had been forgotten (claim.lua).
if not priority or cancelled_ms or deleting or TERMINAL[status or ''] then return 0 end
-- Attempts only grow. A lower number in Redis says that Redis forgot this claim and that none was made since.
if tonumber(attempts or '0') >= attempt then return 0 end
if status == 'running' then
  -- Redis still has the claim before this one; it forgot that one's end as well.
  redis.call('SADD', k_worker(holder, 'stop'), holder_token)
else
  count_claimed(batch, uid, 1)
end
detach(uid, holder, priority)
redis.call('ZREM', P .. 'delayed', uid)
-- Redis also forgot whether this attempt has called.
hold(uid, attempt, token, worker, '')
if ARGV[6] == '1' then
  redis.call('DEL', k_rollout(uid, 'journal'))
  redis.call('HSET', k_rollout(uid), 'turns', ARGV[7])
  for i = 8, #ARGV do redis.call('RPUSH', k_rollout(uid, 'journal'), ARGV[i]) end
end
return 1
