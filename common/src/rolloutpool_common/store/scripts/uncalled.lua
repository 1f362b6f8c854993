-- Take back that a claimed rollout is about to ask its policy: it waits, and nothing that it has asked is unanswered.
-- ARGV: uid, token of the claim, 1 where earlier attempts left no turn in doubt either, else 0.
-- Answer: 1, or 0: the claim is lost.
local uid, token = ARGV[1], ARGV[2]
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
redis.call('HSET', k_rollout(uid), 'uncalled', epoch())
if ARGV[3] == '1' then redis.call('HSET', k_rollout(uid), 'clean', 1) end
return 1
