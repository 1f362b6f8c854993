-- Have a runner open a place for a session's program, if it had none yet. By the worker that has the session.
-- ARGV: batch, index, token, 0 where a later place gets no replies of an older one (else 1).
local batch, index, token, reuse = unpack(ARGV, 1, 4)
local uid = batch .. '-' .. index
local key = k_rollout(uid, 'session')
if redis.call('HGET', k_rollout(uid), 'token') ~= token or redis.call('HEXISTS', key, 'over') == 1 then return 0 end
if redis.call('HSETNX', key, 'reuse', reuse) == 0 then return 0 end
redis.call('ZADD', WANTED, str(now_ms()), uid)
return 1
