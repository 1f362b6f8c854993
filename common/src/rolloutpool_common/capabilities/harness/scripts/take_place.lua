-- Give a runner the place that is wanted for the longest time. One whose runner is silent is wanted again, and counted as lost.
-- For 5 s after a start of Redis none is given: one that seems to be wanted may have been taken in the second that was lost.
-- ARGV: token of the lease, ms that it lasts.
-- Answer: uid ('' where none is wanted), place (its number, from 1), deaths (of the program), losses (of its runner).
local token, lease_ms = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local NONE = { 'uid', '', 'place', 0, 'deaths', 0, 'losses', 0 }
if after_silence(now, lease_ms) then return NONE end
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', HELD, '-inf', str(now), 'LIMIT', 0, 100)) do
  redis.call('ZREM', HELD, uid)
  redis.call('ZADD', WANTED, str(now), uid)
  redis.call('HINCRBY', k_rollout(uid, 'session'), 'losses', 1)
end
while true do
  local uid = redis.call('ZRANGE', WANTED, 0, 0)[1]
  if not uid then return NONE end
  redis.call('ZREM', WANTED, uid)
  local key = k_rollout(uid, 'session')
  if redis.call('EXISTS', k_rollout(uid)) == 1 and not is_sampled(uid) and redis.call('HEXISTS', key, 'over') == 0 then
    local place = redis.call('HINCRBY', key, 'place', 1)
    redis.call('HSET', key, 'lease', token)
    -- Until now there was no program that could have called.
    if redis.call('HEXISTS', key, 'idle') == 1 then redis.call('HSET', key, 'idle', str(now)) end
    redis.call('ZADD', HELD, str(now + lease_ms), uid)
    local deaths, losses = unpack(redis.call('HMGET', key, 'deaths', 'losses'))
    return { 'uid', uid, 'place', place, 'deaths', tonumber(deaths or '0'), 'losses', tonumber(losses or '0') }
  end
end
