-- List the members of a rollout's group that wait for the group's grade.
-- ARGV: batch, index of the rollout.
-- Answer: their indexes, and the bytes of their results as they are kept: {index, bytes, ...}.
local found, group = {}, redis.call('HGET', k_batch(ARGV[1], 'groups'), ARGV[2])
for _, index in ipairs(group and held_members(ARGV[1], group) or {}) do
  found[#found + 1] = tonumber(index)
  found[#found + 1] = redis.call('STRLEN', k_rollout(ARGV[1] .. '-' .. index, 'ungraded'))
end
return found
