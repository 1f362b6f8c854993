-- Note that a worker is alive, and tell it what it must know.
-- ARGV: worker, then field, value, ... of what it announces.
-- Answer: known (1, or 0: it was declared dead and must announce itself again), epoch, stop (the tokens of the claims
-- that it must stop running, each told once; at most 1000, the others with the next beat), suspects (how many wait for an
-- isolated worker), pushes (how many results are to be pushed, now or later).
local worker = ARGV[1]
-- With its announcement a worker that was declared dead begins anew. It has been told which claims it lost.
if ARGV[2] == 'about' then redis.call('ZREM', P .. 'condemned', worker) end
redis.call('ZADD', P .. 'workers', str(now_ms()), worker)
local epoch = tonumber(redis.call('HGET', P .. 'epoch', 'number') or '0')
redis.call('HSET', k_worker(worker), 'epoch', epoch, unpack(ARGV, 2))
local known = redis.call('HEXISTS', k_worker(worker), 'about') == 1 and not redis.call('ZSCORE', P .. 'condemned', worker)
return {
  'known', known and 1 or 0,
  'epoch', epoch,
  'stop', redis.call('SPOP', k_worker(worker, 'stop'), 1000),
  'suspects', redis.call('ZCARD', P .. 'suspects'),
  'pushes', redis.call('ZCARD', P .. 'push:due'),
}
