-- Cancel a rollout that has not been submitted yet: remember its name, so that its commit finds the cancel.
-- ARGV: owner, the caller's name of the rollout, ms for which to remember it, how many names to remember at most.
-- Answer: '', or the uid of the rollout: it was submitted already, and nothing was done.
local owner, name, ms, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local uid = redis.call('GET', k_name(owner, name))
if uid then return uid end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', P .. 'precancels', '-inf', str(now))
redis.call('ZADD', P .. 'precancels', str(now + tonumber(ms)), owner .. ':' .. name)
-- Beyond the limit the oldest ones are forgotten: callers may name what never comes.
redis.call('ZREMRANGEBYRANK', P .. 'precancels', 0, -most - 1)
redis.call('PEXPIRE', P .. 'precancels', ms)
return ''
