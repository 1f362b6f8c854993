-- Keep a batch that is due to be deleted for some time more, once, if pushes of it wait. The last of them lets it go.
-- ARGV: batch, ms.
-- Answer: 1 if it is kept.
local batch, pending = ARGV[1], tonumber(redis.call('HGET', k_batch(ARGV[1]), 'push:pending') or '0')
-- A deletion that has begun is completed.
if pending <= 0 or redis.call('HEXISTS', k_batch(batch), 'deleting') == 1 then return 0 end
if redis.call('HSETNX', k_batch(batch), 'held_for_pushes', '1') == 0 then
  -- Kept before: by this very call, whose answer was lost, or for a time that is over now.
  return tonumber(redis.call('ZSCORE', P .. 'ended', batch) or '0') > now_ms() and 1 or 0
end
redis.call('ZADD', P .. 'ended', str(now_ms() + tonumber(ARGV[2])), batch)
return 1
