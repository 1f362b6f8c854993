-- Note that a claimed rollout is about to ask its policy: from now on a death of its worker leaves a turn in doubt. Or take
-- that back: it waits, and nothing that it has asked is unanswered.
-- ARGV: uid, token of the claim, then to take it back: 1 where earlier attempts left no turn in doubt either, else 0.
-- Answer: 1, or 0: the claim is lost.
local uid, token, certain = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
redis.call('HSET', k_rollout(uid), 'uncalled', certain and epoch() or '')
if certain == '1' then redis.call('HSET', k_rollout(uid), 'clean', 1) end
return 1
