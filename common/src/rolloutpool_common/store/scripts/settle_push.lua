-- Note what became of a push: of a leased one what its worker says, or that its rollout was cancelled too late.
-- ARGV: batch, uid, 'delivered' | 'dead' | 'retry' | 'stopped', ms until the retry. -> 1 | 0 it was not due any more
local b, uid, what = ARGV[1], ARGV[2], ARGV[3]
if not redis.call('ZSCORE', P .. 'push:due', uid) then return 0 end
if what == 'retry' then
  redis.call('ZADD', P .. 'push:due', str(now_ms() + tonumber(ARGV[4])), uid)
  return 1
end
redis.call('ZREM', P .. 'push:due', uid)
count('push:' .. what)
redis.call('HDEL', P .. 'push:attempts', uid)
if redis.call('EXISTS', k_batch(b)) == 1 then
  redis.call('HINCRBY', k_batch(b), 'push:pending', -1)
  redis.call('HINCRBY', k_batch(b), 'push:' .. what, 1)
end
if what == 'dead' then
  redis.call('LPUSH', P .. 'push:dead', uid)
  redis.call('LTRIM', P .. 'push:dead', 0, 9999)
end
return 1
