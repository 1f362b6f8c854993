-- Take a batch that is about to be deleted out of what its owner holds, with its idempotency key, and its rollouts off the
-- list of those that killed their workers.
-- ARGV: batch.
-- Answer: 1, or 0: it was taken out before, or never counted.
local batch = ARGV[1]
-- A key that is kept for a shorter time than its batch may have been free, and be another batch's now.
local idempotency = redis.call('HGET', k_batch(batch), 'idempotency')
if idempotency and redis.call('HGET', idempotency, 'batch') == batch then redis.call('UNLINK', idempotency) end
-- Nobody can look at them any more, or run them again. One may have been cancelled just when it was put there.
local failed, cancelled = unpack(redis.call('HMGET', k_batch(batch), 'failed', 'cancelled'))
for _, uid in ipairs((failed or cancelled) and redis.call('LRANGE', P .. 'dead', 0, -1) or {}) do
  local its = string.match(uid, '^(.*)%-%d+$')
  -- Earlier releases left those of their batches.
  if its == batch or redis.call('EXISTS', k_batch(its)) == 0 then redis.call('LREM', P .. 'dead', 0, uid) end
end
settle_usage(batch)
local owner, key, held_bytes = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'reserve', 'held_bytes'))
if not key then return 0 end
use(owner, 'bytes', -tonumber(held_bytes or '0'))
redis.call('HDEL', k_batch(batch), 'reserve', 'held_bytes')
return 1
