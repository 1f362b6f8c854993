-- Find rollouts that nobody polls any more.
-- ARGV: how many at the most.
-- Answer: their batches. From here on no poll renews their leases; who asks has to end them. One stays in the list until its
-- rollout has ended (`osmosis_on_end`), so the next round finds it if the process ends before.
if is_quiet() then return {} end
local found = {}
for _, batch in ipairs(redis.call('ZRANGEBYSCORE', UNPOLLED, '-inf', str(served_ms()), 'LIMIT', 0, ARGV[1])) do
  local lease, finished = unpack(redis.call('HMGET', k_batch(batch), 'polling_lease', 'finished_ms'))
  if lease and not finished then
    redis.call('HSET', k_batch(batch), 'forsaken', 1)
    found[#found + 1] = batch
  else
    redis.call('ZREM', UNPOLLED, batch)
  end
end
return found
