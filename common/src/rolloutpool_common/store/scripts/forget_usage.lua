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
local dead = (failed or cancelled) and redis.call('LRANGE', P .. 'dead', 0, -1) or {}
local kept, is_kept = {}, { [batch] = false }
for _, uid in ipairs(dead) do
  local its = string.match(uid, '^(.*)%-%d+$')
  -- Earlier releases left those of their batches.
  if is_kept[its] == nil then is_kept[its] = redis.call('EXISTS', k_batch(its)) == 1 end
  if is_kept[its] then kept[#kept + 1] = uid end
end
-- Written anew, because each LREM reads all of the list: 10,000 of them held Redis up for 2 s.
if #kept < #dead then
  redis.call('DEL', P .. 'dead')
  for i = 1, #kept, 1000 do redis.call('RPUSH', P .. 'dead', unpack(kept, i, math.min(i + 999, #kept))) end
end
settle_usage(batch)
local owner, key, held_bytes = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'reserve', 'held_bytes'))
if not key then return 0 end
use(owner, 'bytes', -tonumber(held_bytes or '0'))
redis.call('HDEL', k_batch(batch), 'reserve', 'held_bytes')
return 1
