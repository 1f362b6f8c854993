-- Forget the journal of a claimed rollout: it starts again from turn 1. ARGV: uid, claim token. -> 1 | 0 fenced
local uid, token = ARGV[1], ARGV[2]
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
redis.call('DEL', k_rollout(uid, 'journal'))
redis.call('HSET', k_rollout(uid), 'turns', 0, 'clean', 1)
return 1
