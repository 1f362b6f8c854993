-- Let a session wait for its program's next call without a worker, if its worker has seen all there is. The worker gives the
-- rollout back with a delay after this.
-- ARGV: batch, index, token, calls that its worker has seen, how long it may wait altogether in ms.
-- Answer: ms for which it may still wait; 0 if it has waited for that long, -1 if there is something to do.
local batch, index, token, seen, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local uid = batch .. '-' .. index
local key = k_rollout(uid, 'session')
local calls, over, idle = unpack(redis.call('HMGET', key, 'calls', 'over', 'idle'))
if redis.call('HGET', k_rollout(uid), 'token') ~= token or tonumber(calls or '0') ~= seen or over then return -1 end
-- A worker may have noted it and died before it gave the rollout back: the time goes on. It does not while the program waits
-- for a runner: a session is not lost because there are few of them.
if not idle or redis.call('ZSCORE', WANTED, uid) then
  redis.call('HSET', key, 'idle', str(now_ms()))
  return most
end
return math.max(0, most - (now_ms() - tonumber(idle)))
