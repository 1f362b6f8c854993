-- Read what the leader of a group has to know; or keep the group's grades first, before any member is delivered. They are
-- kept once: a later try changes nothing.
-- ARGV: batch, index of the rollout that leads the group, token of its claim, grades (JSON) or '' to read.
-- Answer: the grades that are kept or '', then index, bytes of the result as it is kept, ... of each member that waits;
-- nothing where grades were to be kept and the claim is lost.
local batch, index, token, grades = unpack(ARGV)
local uid = batch .. '-' .. index
if grades ~= '' then
  if redis.call('HGET', k_rollout(uid), 'token') ~= token then return {} end
  redis.call('SET', k_rollout(uid, 'grades'), grades, 'NX')
end
local found, group = { redis.call('GET', k_rollout(uid, 'grades')) or '' }, redis.call('HGET', k_batch(batch, 'groups'), index)
for _, member in ipairs(group and held_members(batch, group) or {}) do
  found[#found + 1] = tonumber(member)
  found[#found + 1] = redis.call('STRLEN', k_rollout(batch .. '-' .. member, 'ungraded'))
end
return found
