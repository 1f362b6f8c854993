-- Let the served clock go on, and end the leases that are over. By the reconciler, once a second.
-- ARGV: process, 1 where callers could reach the API since its last tick (else 0), most leases, most polling leases.
-- Answer: leases (batches whose cancellation has begun here), polled (batches of one whose rollout nobody polls any more;
-- `polling_leases.py` ends it).
--
-- How long somebody was silent can only be counted while somebody could have heard them:
-- 1. The clock advances by what Redis' own clock did since the last tick, if the same process made both, Redis was not
--    started meanwhile, the API could be reached, and the time is not longer than 5 s (then a process stood still).
-- 2. Otherwise nothing counts, and for the next 10 s of the clock nothing ends, so that callers who wait before they ask
--    again have the time to come back.
-- 3. What has ended stays: nothing begins a cancelled batch again, and no poll renews a lease that was found over here.
--
-- Example: a lease of 60 s, 50 s after the last read. Redis is away for ten minutes. Then the reader has 10 s left.
local process, serving, most, most_polled = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local LONGEST_MS, QUIET_MS = 5000, 10000
local now, key = now_ms(), P .. 'served'
local clock, seen, quiet, known = unpack(redis.call('HMGET', key, 'clock_ms', 'seen_ms', 'quiet_ms', 'of'))
clock, quiet = tonumber(clock or '0'), tonumber(quiet or '0')
local passed, of = now - tonumber(seen or now), process .. ' ' .. epoch()
if serving and known == of and passed >= 0 and passed <= LONGEST_MS then
  clock = clock + passed
else
  quiet = clock + QUIET_MS
end
redis.call('HSET', key, 'clock_ms', str(clock), 'seen_ms', str(now), 'quiet_ms', str(quiet), 'of', of)
-- Older versions kept polling leases here, by Redis' own clock. One of theirs was renewed since the last tick, or was left
-- by an API that has been replaced, and nobody could poll meanwhile; so it begins anew.
for _, uid in ipairs(redis.call('ZRANGE', P .. 'polling_leases', 0, most_polled - 1)) do
  renew_lease(string.sub(uid, 1, -3), true)
  redis.call('ZREM', P .. 'polling_leases', uid)
end
local leases, polled = {}, {}
if clock >= quiet then
  leases = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', str(clock), 'LIMIT', 0, most)
  for _, batch in ipairs(leases) do
    redis.call('ZREM', P .. 'leases', batch)
    if redis.call('EXISTS', k_batch(batch)) == 1 then begin_cancel(batch, 'lease') end
  end
  -- One stays in its list until its rollout has ended (end_rollout), so that the next tick finds it if the process ends
  -- before.
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases:polled', '-inf', str(clock), 'LIMIT', 0, most_polled)) do
    local lease_ms, finished = unpack(redis.call('HMGET', k_batch(batch), 'polling_ms', 'finished_ms'))
    if lease_ms and not finished then
      redis.call('HSET', k_batch(batch), 'forsaken', 1)
      polled[#polled + 1] = batch
    else
      redis.call('ZREM', P .. 'leases:polled', batch)
    end
  end
end
return { 'leases', leases, 'polled', polled }
