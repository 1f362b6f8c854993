-- Cancel a rollout that nobody has submitted yet. ARGV: scope, its caller's name, ms for which that holds, most at once.
-- -> '' | its uid: it was submitted
local scope, name, ms, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local uid = redis.call('GET', k_name(scope, name))
if uid then return uid end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', P .. 'tombstones', '-inf', str(now))
redis.call('ZADD', P .. 'tombstones', str(now + tonumber(ms)), scope .. ':' .. name)
redis.call('ZREMRANGEBYRANK', P .. 'tombstones', 0, -most - 1)
redis.call('PEXPIRE', P .. 'tombstones', ms)
return ''
