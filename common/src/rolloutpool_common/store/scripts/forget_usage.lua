-- Take a batch that is about to be deleted out of what its owner holds.
-- ARGV: batch.
-- Answer: 1, or 0: it was taken out before, or never counted.
local batch = ARGV[1]
settle_usage(batch)
local owner, key, held_bytes = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'reserve', 'held_bytes'))
if not key then return 0 end
use(owner, 'bytes', -tonumber(held_bytes or '0'))
redis.call('HDEL', k_batch(batch), 'reserve', 'held_bytes')
return 1
