-- A worker is alive. ARGV: worker, then field, value ... of what it announces.
-- -> {1 known | 0 it was declared dead and must announce itself again, epoch, token of a claim to stop running, ...}
local w = ARGV[1]
redis.call('ZADD', P .. 'workers', str(now_ms()), w)
redis.call('HSET', k_worker(w), unpack(ARGV, 2))
local epoch = tonumber(redis.call('HGET', P .. 'epoch', 'number') or '0')
return { redis.call('HEXISTS', k_worker(w), 'about'), epoch, unpack(redis.call('SPOP', k_worker(w, 'stop'), 1000)) }
