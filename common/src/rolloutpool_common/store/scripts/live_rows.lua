-- Read where some rollouts of a batch stand that have not ended.
-- ARGV: batch, index, ...
-- Answer: {{status, attempt, worker, turns, claimed, stage}, ...}; nil for what a rollout does not have yet.
local found = {}
for i = 2, #ARGV do
  found[#found + 1] = redis.call(
    'HMGET', k_rollout(ARGV[1] .. '-' .. ARGV[i]), 'status', 'attempt', 'worker', 'turns', 'claimed', 'stage'
  )
end
return found
