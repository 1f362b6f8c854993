-- Forget a worker that was declared dead and whose claims were put back. ARGV: worker. -> 1 | 0 it has claims again
-- Should it live, it is told to stop what it had.
local w = ARGV[1]
if redis.call('EXISTS', k_worker(w, 'claims')) == 1 then return 0 end
if redis.call('ZREM', P .. 'workers', w) == 1 then count('workers_lost') end
redis.call('DEL', k_worker(w))
redis.call('EXPIRE', k_worker(w, 'stop'), 3600)
return 1
