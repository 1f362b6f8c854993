-- Lease up to `limit` due pushes for `lease` ms. ARGV: limit, lease ms. -> {uid, attempt, ...}
local now, out = now_ms(), {}
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', P .. 'push:due', '-inf', str(now), 'LIMIT', 0, ARGV[1])) do
  redis.call('ZADD', P .. 'push:due', str(now + tonumber(ARGV[2])), uid)
  out[#out + 1] = uid
  out[#out + 1] = redis.call('HINCRBY', P .. 'push:attempts', uid, 1)
end
return out
