-- Cancel a rollout that nobody has submitted yet. ARGV: owner, its caller's name, ms for which that holds, most at once.
-- -> '' | its uid: it was submitted
local owner, name, ms, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local uid = redis.call('GET', k_name(owner, name))
if uid then return uid end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', P .. 'precancels', '-inf', str(now))
redis.call('ZADD', P .. 'precancels', str(now + tonumber(ms)), owner .. ':' .. name)
redis.call('ZREMRANGEBYRANK', P .. 'precancels', 0, -most - 1)
redis.call('PEXPIRE', P .. 'precancels', ms)
return ''
