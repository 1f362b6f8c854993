-- Give a claim that Redis forgot, because it lost its tail, back to the worker that runs it.
-- ARGV: batch, index, worker, claim token, attempt, 1 the records are the whole journal | 0 they are not known, turns,
-- record, ... -> 1 it is the worker's | 0 it is not
local b, index, worker, token, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local uid = b .. '-' .. index
local meta = redis.call('HMGET', k_batch(b), 'priority', 'cancelled_ms')
local state = redis.call('HMGET', k_rollout(uid), 'status', 'attempt', 'token', 'worker')
if state[3] == token then return 1 end
if not meta[1] or meta[2] or TERMINAL[state[1] or ''] then return 0 end
-- Attempts only grow: a lower number says that this claim was forgotten, and that none was made since.
if tonumber(state[2] or '0') >= attempt then return 0 end
if state[1] == 'running' then
  -- The claim before this one, whose end was forgotten too.
  redis.call('SADD', k_worker(state[4], 'stop'), state[3])
else
  redis.call('HINCRBY', k_batch(b), 'running', 1)
end
detach(uid, state[4], meta[1])
redis.call('ZREM', P .. 'delayed', uid)
hold(uid, attempt, token, worker)
if ARGV[6] == '1' then
  redis.call('DEL', k_rollout(uid, 'journal'))
  redis.call('HSET', k_rollout(uid), 'turns', ARGV[7])
  for i = 8, #ARGV do redis.call('RPUSH', k_rollout(uid, 'journal'), ARGV[i]) end
end
return 1
