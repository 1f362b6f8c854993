-- Keep the grades of a group, before any of its members is delivered. They are kept once: a later try changes nothing.
-- ARGV: batch, index of the rollout that leads the group, token of its claim, grades (JSON).
-- Answer: what is kept; '' where the claim is lost.
local uid = ARGV[1] .. '-' .. ARGV[2]
if redis.call('HGET', k_rollout(uid), 'token') ~= ARGV[3] then return '' end
redis.call('SET', k_rollout(uid, 'grades'), ARGV[4], 'NX')
return redis.call('GET', k_rollout(uid, 'grades'))
