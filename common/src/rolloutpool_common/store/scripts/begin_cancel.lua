-- Begin to cancel a batch.
-- ARGV: batch, why, in one word (CancelCause).
-- Answer: how many of its rollouts were cancelled before; read in this step, so that nothing which follows is among them.
if redis.call('EXISTS', k_batch(ARGV[1])) == 0 then return 0 end
begin_cancel(ARGV[1], ARGV[2])
return tonumber(redis.call('HGET', k_batch(ARGV[1]), 'cancelled') or '0')
