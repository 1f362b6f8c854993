-- Keep a place, by the runner that has it.
-- ARGV: uid, the place's number, token of the lease, ms that it lasts.
-- Answer: 1; 0 where the place is another's, or the rollout needs no program any more.
local uid, number, token, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = now_ms()
after_silence(now, lease_ms)
local has, over = has_place(uid, number, token), redis.call('HGET', k_rollout(uid, 'session'), 'over')
if not has or redis.call('EXISTS', k_rollout(uid)) == 0 or is_sampled(uid) or over then
  if has then redis.call('ZREM', HELD, uid) end
  return 0
end
redis.call('ZADD', HELD, str(now + lease_ms), uid)
return 1
