-- Forget a worker that was declared dead, after its claims were put back.
-- ARGV: worker.
-- Answer: 1, or 0: it has claims again, so they must be put back first.
-- Its `stop` tokens stay for an hour: if it lives after all, its next beat tells it to stop what it had.
local worker = ARGV[1]
-- It may live, and claim between the reconciler's look at its claims and this script.
if redis.call('EXISTS', k_worker(worker, 'claims')) == 1 then return 0 end
if redis.call('ZREM', P .. 'workers', worker) == 1 then count('workers_lost') end
redis.call('DEL', k_worker(worker))
redis.call('SREM', P .. 'isolated', worker)
redis.call('EXPIRE', k_worker(worker, 'stop'), 3600)
return 1
