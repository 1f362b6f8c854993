-- List rollouts whose grader's deadline has passed, and that nobody grades now.
-- ARGV: most of them.
-- Answer: {uid, 1 where its group was to be graded as a whole (else 0), ...}. Those that a worker has are left to it: it ends
-- them itself, and if it dies they are queued.
local PUT_OFF_MS, found = 600000, {}
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', P .. 'grading', '-inf', str(now_ms()), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local batch, index = string.match(uid, '^(.*)%-(%d+)$')
  local group = redis.call('HGET', k_batch(batch, 'groups'), index)
  local leader = group and redis.call('HGET', k_batch(batch, 'group_counts'), 'leader:' .. group)
  local held = redis.call('HGET', k_rollout(uid), 'status') == 'running'
  if leader and redis.call('HGET', k_rollout(batch .. '-' .. leader), 'status') == 'running' then held = true end
  -- The group has its grades, which a worker that died was delivering. The next one goes on.
  if leader and redis.call('EXISTS', k_rollout(batch .. '-' .. leader, 'grades')) == 1 then held = true end
  -- While its run is paused, no worker gets it, and the others of its group do not go on. So its time stands still
  -- (grading_on_resume, which needs to know when it was due), and it makes room here for others.
  local run = redis.call('HGET', k_batch(batch), 'run')
  if not held and run and is_paused(batch, run) then
    redis.call('HSETNX', k_rollout(uid), 'grade_due', redis.call('ZSCORE', P .. 'grading', uid))
    redis.call('ZADD', P .. 'grading', str(now_ms() + PUT_OFF_MS), uid)
  -- One of a batch that was deleted is listed too: its end finds nothing, and it is taken off the list.
  elseif not held then
    found[#found + 1] = uid
    found[#found + 1] = group and redis.call('HEXISTS', k_batch(batch, 'group_counts'), 'due:' .. group) or 0
  end
end
return found
