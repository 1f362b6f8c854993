-- Read the states of neighbouring rollouts of a batch.
-- ARGV: batch, first index, last index.
-- Answer: {{status, attempt, worker, waits}, ...}; nil for what a rollout does not have yet.
local found = {}
for index = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  found[#found + 1] = redis.call('HMGET', k_rollout(ARGV[1] .. '-' .. str(index)), 'status', 'attempt', 'worker', 'waits')
end
return found
