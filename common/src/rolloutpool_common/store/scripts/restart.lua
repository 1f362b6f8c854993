-- Forget the journal of a claimed rollout, which then starts again from turn 1.
-- ARGV: uid, token of the claim.
-- Answer: 1, or 0: the claim is lost.
local uid, token = ARGV[1], ARGV[2]
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
redis.call('DEL', k_rollout(uid, 'journal'))
redis.call('HDEL', k_rollout(uid), 'journaled')
-- `clean`: all turns are sampled anew, so an unanswered call of an earlier attempt makes none of them ambiguous.
redis.call('HSET', k_rollout(uid), 'turns', 0, 'clean', 1)
return 1
