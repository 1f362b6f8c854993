-- Lease due pushes: no other worker gets them until the lease ends.
-- ARGV: most pushes, ms of the lease.
-- Answer: a list of {uid, attempt}; attempts count from 1.
local now, taken = now_ms(), {}
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', P .. 'push:due', '-inf', str(now), 'LIMIT', 0, ARGV[1])) do
  redis.call('ZADD', P .. 'push:due', str(now + tonumber(ARGV[2])), uid)
  taken[#taken + 1] = { uid, redis.call('HINCRBY', P .. 'push:attempts', uid, 1) }
end
return taken
