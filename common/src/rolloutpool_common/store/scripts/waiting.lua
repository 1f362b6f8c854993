-- Note what rollouts of a batch wait for at an endpoint, or that nothing waits there any more.
-- ARGV: batch, field of the batch, note ('' takes it away).
-- Answer: 1, or 0: the batch has ended or is gone, and nothing was written.
local batch, field, note = ARGV[1], ARGV[2], ARGV[3]
local total, finished = unpack(redis.call('HMGET', k_batch(batch), 'total', 'finished_ms'))
if not total then return 0 end
if finished or note == '' then
  redis.call('HDEL', k_batch(batch), field)
  return note == '' and 1 or 0
end
redis.call('HSET', k_batch(batch), field, note)
return 1
