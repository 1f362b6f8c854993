-- Note that a claimed rollout is about to ask its policy. From now on a death of its worker leaves a turn in doubt.
-- ARGV: uid, token of the claim.
-- Answer: 1, or 0: the claim is lost.
local uid, token = ARGV[1], ARGV[2]
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
redis.call('HSET', k_rollout(uid), 'uncalled', '')
return 1
