-- Keep a place, by the runner that has it.
-- ARGV: uid, token of the lease, ms that it lasts.
-- Answer: 1; 0 where the place is another's, or the rollout needs no program any more.
local uid, token, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = now_ms()
after_silence(now, lease_ms)
local lease, over = unpack(redis.call('HMGET', k_rollout(uid, 'session'), 'lease', 'over'))
if redis.call('EXISTS', k_rollout(uid)) == 0 or is_sampled(uid) or lease ~= token or over then
  if lease == token then redis.call('ZREM', HELD, uid) end
  return 0
end
redis.call('ZADD', HELD, str(now + lease_ms), uid)
return 1
