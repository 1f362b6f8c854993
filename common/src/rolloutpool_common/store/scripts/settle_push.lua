-- Note what became of a push.
-- ARGV: batch, uid, outcome, ms until the retry.
-- The worker that leased it says `delivered`, `dead` (given up) or `retry`; `stopped` says that its rollout was cancelled
-- after it had ended.
-- Answer: 1, or 0: the push was not due any more.
local batch, uid, outcome = ARGV[1], ARGV[2], ARGV[3]
if not redis.call('ZSCORE', P .. 'push:due', uid) then return 0 end
if outcome == 'retry' then
  redis.call('ZADD', P .. 'push:due', str(now_ms() + tonumber(ARGV[4])), uid)
  return 1
end
redis.call('ZREM', P .. 'push:due', uid)
count('push:' .. outcome)
redis.call('HDEL', P .. 'push:attempts', uid)
if redis.call('EXISTS', k_batch(batch)) == 1 then
  redis.call('HINCRBY', k_batch(batch), 'push:pending', -1)
  redis.call('HINCRBY', k_batch(batch), 'push:' .. outcome, 1)
end
if outcome == 'dead' then
  redis.call('LPUSH', P .. 'push:dead', uid)
  redis.call('LTRIM', P .. 'push:dead', 0, 9999)
end
return 1
