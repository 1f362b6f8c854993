-- Read some fields of some rollouts of a batch.
-- ARGV: batch, how many fields, field, ..., index, ...
-- Answer: {{value, ...}, ...}; nil for what a rollout does not have yet.
local found, fields = {}, { unpack(ARGV, 3, 2 + tonumber(ARGV[2])) }
for i = 3 + #fields, #ARGV do
  found[#found + 1] = redis.call('HMGET', k_rollout(ARGV[1] .. '-' .. ARGV[i]), unpack(fields))
end
return found
