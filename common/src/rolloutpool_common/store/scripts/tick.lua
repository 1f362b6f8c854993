-- Let the served clock go on, and end the leases that are over. By the reconciler, once a second.
-- ARGV: process, 1 where callers could reach the API since its last tick (else 0), most leases.
-- Answer: the batches whose lease is over; their cancellation has begun here.
--
-- How long somebody was silent can only be counted while somebody could have heard them:
-- 1. The clock advances by what Redis' own clock did since the last tick, if the same process made both, Redis was not
--    started meanwhile, the API could be reached, and the time is not longer than 5 s (then a process stood still).
-- 2. Otherwise nothing counts, and for the next 10 s of the clock nothing ends, so that callers who wait before they ask
--    again have the time to come back.
-- 3. What has ended stays: nothing begins a cancelled batch again.
--
-- Example: a lease of 60 s, 50 s after the last read. Redis is away for ten minutes. Then the reader has 10 s left.
local process, serving, most = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
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
local leases = {}
if clock >= quiet then
  leases = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', str(clock), 'LIMIT', 0, most)
  for _, batch in ipairs(leases) do
    redis.call('ZREM', P .. 'leases', batch)
    if redis.call('EXISTS', k_batch(batch)) == 1 then begin_cancel(batch, 'lease') end
  end
end
return leases
