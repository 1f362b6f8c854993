-- Forget a worker that was declared dead, after its claims were put back.
-- ARGV: worker.
-- Answer: 1, or 0: it has claims again, so they must be put back first; or it lives and has announced itself again.
-- Its `stop` tokens stay for an hour: if it lives after all, its next beat tells it to stop what it had.
local worker = ARGV[1]
if not redis.call('ZSCORE', P .. 'condemned', worker) then return 0 end
-- It may hold claims again: a restart of Redis may have brought them back (restore.lua).
if redis.call('EXISTS', k_worker(worker, 'claims')) == 1 then return 0 end
redis.call('ZREM', P .. 'workers', worker)
redis.call('DEL', k_worker(worker))
redis.call('SREM', P .. 'isolated', worker)
redis.call('EXPIRE', k_worker(worker, 'stop'), 3600)
return 1
