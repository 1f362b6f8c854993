-- A worker is alive. ARGV: worker, then field, value ... of what it announces. -> uids that it must stop
local w = ARGV[1]
redis.call('ZADD', P .. 'workers', str(now_ms()), w)
if #ARGV > 1 then redis.call('HSET', k_worker(w), unpack(ARGV, 2)) end
return redis.call('SPOP', k_worker(w, 'stop'), 1000)
