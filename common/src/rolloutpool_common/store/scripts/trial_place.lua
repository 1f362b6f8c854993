-- Tell a worker whether to start an isolated worker for suspects.
-- ARGV: worker, most that are tried together, ms that a start may take.
-- Answer: 1, or 0: none waits that this worker is suited for and whose run goes on, or enough isolated workers are being
-- started.
--
-- One is wanted for each cohort that waits, as far as the company of who has waited longest tells. `trials` has the workers
-- that were told to start one and whose child has not yet asked for its first cohort; after `ms` the start has failed.
local worker, most, start_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local first
for _, uid in ipairs(redis.call('ZRANGE', P .. 'suspects', 0, 999)) do
  local batch, index = string.match(uid, '^(.*)%-(%d+)$')
  local needs, others, run = unpack(redis.call('HMGET', k_batch(batch), 'needs', 'other_needs', 'run'))
  first = not is_paused(batch, run) and is_suited(worker, needs_of(batch, index, needs, others)) and uid
  if first then break end
end
if not first then return 0 end
local trials, now = P .. 'trials', now_ms()
redis.call('ZREMRANGEBYSCORE', trials, '-inf', str(now))
-- It asks again, so its child has ended.
redis.call('ZREM', trials, worker)
if redis.call('ZCARD', trials) >= math.ceil(redis.call('ZCARD', P .. 'suspects') / company_of(first, most)) then return 0 end
redis.call('ZADD', trials, str(now + start_ms), worker)
return 1
