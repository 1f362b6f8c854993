-- Note that the conversation of a claimed rollout is complete: its result is kept without its grade, in the place of its
-- journal, and its own deadline counts no more.
-- ARGV: batch, index, token of the claim, result, ms that its grader has, group that is graded as a whole ('' for none), most
-- members of such a group, the result's attachments or ''.
-- Answer: `ok`: the worker, which keeps the claim, grades it now. `held`: the claim is given up, and the rollout waits for
-- the rest of its group. `late`: the group's deadline has passed, so it is not held. `large`: the group has too many
-- members. `fenced`: the claim is lost.
local batch, index, token, result, seconds_ms, group = unpack(ARGV, 1, 6)
local uid = batch .. '-' .. index
local holder_token, stage, status, worker = unpack(redis.call('HMGET', k_rollout(uid), 'token', 'stage', 'status', 'worker'))
if holder_token ~= token then
  -- This very call was made before, and its answer was lost; the claim ended with it.
  return (stage and group ~= '' and status == 'queued') and 'held' or 'fenced'
end
local counts, due = k_batch(batch, 'group_counts'), str(now_ms() + tonumber(seconds_ms))
if group ~= '' then
  if tonumber(redis.call('HGET', counts, 'size:' .. group) or '0') > tonumber(ARGV[7]) then return 'large' end
  -- The time of the group begins with the first of its members.
  redis.call('HSETNX', counts, 'due:' .. group, due)
  due = redis.call('HGET', counts, 'due:' .. group)
end
if not stage then
  redis.call('SET', k_rollout(uid, 'ungraded'), result)
  if ARGV[8] ~= '' then
    redis.call('SET', k_rollout(uid, 'attachments'), ARGV[8])
    hold_bytes(batch, #ARGV[8])
  end
  redis.call('DEL', k_rollout(uid, 'journal'))
  count_claimed(batch, uid, -1)
  redis.call('HSET', k_rollout(uid), 'stage', 'grading', 'clean', 1)
  redis.call('HINCRBY', k_batch(batch), 'grading', 1)
  redis.call('ZREM', P .. 'deadlines', uid)
  redis.call('ZADD', P .. 'grading', due, uid)
  -- Progress: its conversation did not kill its workers.
  clear(uid)
  -- @on_stage(batch)
end
if group == '' then return 'ok' end
-- While its run is paused, the time of a group stands still (grading_on_resume).
if tonumber(due) <= now_ms() and not is_paused(batch, redis.call('HGET', k_batch(batch), 'run')) then return 'late' end
redis.call('HSET', k_rollout(uid), 'status', 'queued', 'held', 1)
redis.call('HDEL', k_rollout(uid), 'token', 'worker', 'uncalled', 'waits')
detach(uid, worker, redis.call('HGET', k_batch(batch), 'priority'))
local held = redis.call('HGET', counts, 'held:' .. group)
redis.call('HSET', counts, 'held:' .. group, held and held ~= '' and (held .. ' ' .. index) or index)
ripen(batch, group)
return 'held'
