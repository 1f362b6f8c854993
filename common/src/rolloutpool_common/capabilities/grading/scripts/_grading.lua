-- What the scripts of grading share, and their part in the kernel's (`grading_on_…`).

-- The members of a group that wait for its grade, as a list of indexes.
local function held_members(batch, group)
  local members = {}
  for index in string.gmatch(redis.call('HGET', k_batch(batch, 'group_counts'), 'held:' .. group) or '', '%d+') do
    members[#members + 1] = index
  end
  return members
end

-- Queue a group to be graded, once each of its rollouts waits for that or has ended. Its first member leads: a worker that
-- claims that one grades all of them.
local function ripen(batch, group)
  local counts, members = k_batch(batch, 'group_counts'), held_members(batch, group)
  local size, gone, leader = unpack(redis.call('HMGET', counts, 'size:' .. group, 'gone:' .. group, 'leader:' .. group))
  if leader or #members == 0 or #members + tonumber(gone or '0') < tonumber(size or '0') then return end
  redis.call('HSET', counts, 'leader:' .. group, members[1])
  redis.call('HSET', k_rollout(batch .. '-' .. members[1]), 'leads', '1')
  to_outbox(batch, members[1], redis.call('HGET', k_batch(batch), 'priority'))
end

-- Take a rollout that ends out of those that are graded, and out of its group's: it may have been the last one that the
-- others waited for.
local function grading_on_end(batch, uid, index, status)
  local counts = k_batch(batch, 'group_counts')
  local grades = redis.call('GET', k_rollout(uid, 'grades'))
  redis.call('ZREM', P .. 'grading', uid)
  redis.call('UNLINK', k_rollout(uid, 'ungraded'), k_rollout(uid, 'grades'))
  -- A cancelled rollout delivers no ids, so nothing belongs to them.
  if status == 'cancelled' then
    hold_bytes(batch, -redis.call('STRLEN', k_rollout(uid, 'attachments')))
    redis.call('UNLINK', k_rollout(uid, 'attachments'))
  end
  if redis.call('HDEL', k_rollout(uid), 'stage', 'leads', 'held') > 0 then redis.call('HINCRBY', k_batch(batch), 'grading', -1) end
  local group = redis.call('HGET', k_batch(batch, 'groups'), index)
  if not group then return end
  local members = held_members(batch, group)
  for place, member in ipairs(members) do
    if member == index then
      table.remove(members, place)
      redis.call('HSET', counts, 'held:' .. group, table.concat(members, ' '))
      break
    end
  end
  redis.call('HINCRBY', counts, 'gone:' .. group, 1)
  -- Cancelled while it led its group: another member leads, with the grades if there are some. One that failed is not
  -- replaced: it killed its workers, and the next one would too. The others are delivered when the deadline passes.
  local led = status == 'cancelled' and redis.call('HGET', counts, 'leader:' .. group) == index
  if led then
    redis.call('HDEL', counts, 'leader:' .. group)
    if grades and members[1] then redis.call('SET', k_rollout(batch .. '-' .. members[1], 'grades'), grades) end
  end
  ripen(batch, group)
end

-- `leads`: it stands for its whole group (1, else 0). `tries`: how often its grader has failed. `due_ms`: from now to its
-- grader's deadline, '' before it is graded.
local function grading_on_claim(notes, uid, now)
  local leads, tries = unpack(redis.call('HMGET', k_rollout(uid), 'leads', 'grade_retries'))
  local due = redis.call('ZSCORE', P .. 'grading', uid)
  for _, one in ipairs({ 'leads', leads and 1 or 0, 'tries', tonumber(tries or '0'), 'due_ms', due and str(due - now) or '' }) do
    notes[#notes + 1] = one
  end
end

-- A run goes on after a pause since `paused_ms`: the time of its graders stood still meanwhile.
local function grading_on_resume(run, paused_ms)
  local of = {}
  for _, uid in ipairs(redis.call('ZRANGE', P .. 'grading', 0, -1)) do
    local batch, index = string.match(uid, '^(.*)%-(%d+)$')
    of[batch] = of[batch] or redis.call('HGET', k_batch(batch), 'run') or ''
    if of[batch] == run then
      -- Where the pause was longer than the time that it had, it was put off (grades_due.lua).
      local was = redis.call('HGET', k_rollout(uid), 'grade_due') or redis.call('ZSCORE', P .. 'grading', uid)
      redis.call('HDEL', k_rollout(uid), 'grade_due')
      local due = str(now_ms() + tonumber(was) - tonumber(paused_ms))
      redis.call('ZADD', P .. 'grading', due, uid)
      local group = redis.call('HGET', k_batch(batch, 'groups'), index)
      local counts, field = k_batch(batch, 'group_counts'), group and 'due:' .. group
      if field and redis.call('HEXISTS', counts, field) == 1 then redis.call('HSET', counts, field, due) end
    end
  end
end

-- Some graders' deadlines have passed.
local function grading_on_lead(chores, now)
  if #redis.call('ZRANGEBYSCORE', P .. 'grading', '-inf', now, 'LIMIT', 0, 1) > 0 then chores[#chores + 1] = 'grading' end
end

-- It waits for its group. At its grader's deadline the reconciler delivers it.
local function grading_on_held(mended, uid, now)
  if redis.call('ZADD', P .. 'grading', 'NX', str(now), uid) == 1 then mended[1] = uid end
end
