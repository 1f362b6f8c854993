-- One look of the reconciler at all workers; it takes or keeps the reconciler's lock in the same step.
-- ARGV: process, ms that the lock lasts.
-- Answer: leader (1 if this process leads, else 0), epoch, seeing (0: this account may not count
-- subscribers), workers (a list of worker, beat, worker, beat, ...), absent (of each worker without a lifeline: worker,
-- whether its lifeline could be seen, host, supervisor or '', whether it has beaten since Redis was started, subscribers of
-- the supervisor's lifeline), doubtful (of each worker whose beat is old, or says that the process does not get on: worker,
-- ms since it last got on as its beat says, and a mark that changes when one of its rollouts does), condemned (workers that are declared dead and still listed), obituaries (a list of worker,
-- end, worker, end, ...).
local DOUBT_MS, MOST_CLAIMS = 5000, 2000
local holder = redis.call('GET', P .. 'leader')
local leads = not holder or holder == ARGV[1]
if leads then redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2]) end

-- The subscribers of the lifelines of these processes, in their order; false where the account may not ask.
local function subscribers(names)
  local counts = {}
  -- 500 at a time, because Lua can pass on only some thousand arguments.
  for start = 1, #names, 500 do
    local channels = {}
    for i = start, math.min(start + 499, #names) do channels[#channels + 1] = P .. 'life:' .. names[i] end
    local answer = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
    if answer.err then return false end
    for i = 2, #answer, 2 do counts[#counts + 1] = answer[i] end
  end
  return counts
end

local epoch = redis.call('HGET', P .. 'epoch', 'number') or '0'
local workers = redis.call('ZRANGE', P .. 'workers', 0, -1, 'WITHSCORES')
local names = {}
for i = 1, #workers, 2 do names[#names + 1] = workers[i] end
local counts = subscribers(names)
local absent, supervisors = {}, {}
for i, worker in ipairs(names) do
  if not counts or counts[i] == 0 then
    local life, host, supervisor, beaten =
      unpack(redis.call('HMGET', k_worker(worker), 'life', 'host', 'supervisor', 'epoch'))
    local seen = (counts and life == '1') and 1 or 0
    absent[#absent + 1] = { worker, seen, host or '', supervisor or '', beaten == epoch and 1 or 0 }
    supervisors[#supervisors + 1] = 'sup:' .. (supervisor or '')
  end
end
-- Who finishes rollouts lives, whatever its beats say. The marks are read of few workers, because most beat in time.
local doubtful, now = {}, now_ms()
for i = 1, #workers, 2 do
  local idle
  for _, age in ipairs(redis.call('HMGET', k_worker(workers[i]), 'turned_ms', 'took_ms', 'wrote_ms')) do
    -- An older version says none of them.
    if age then idle = math.min(idle or math.huge, tonumber(age)) end
  end
  if now - tonumber(workers[i + 1]) > DOUBT_MS or (idle or 0) > DOUBT_MS then
    local claims, mark = redis.call('SMEMBERS', k_worker(workers[i], 'claims')), 0
    for n = 1, math.min(#claims, MOST_CLAIMS) do
      local claimed, turns = unpack(redis.call('HMGET', k_rollout(claims[n]), 'claimed', 'turns'))
      mark = mark + tonumber(claimed or '0') % 1e7 + 1e7 * tonumber(turns or '0')
    end
    doubtful[#doubtful + 1] = { workers[i], idle or 0, #claims .. ':' .. str(mark) }
  end
end
local alive = subscribers(supervisors)
for i, entry in ipairs(absent) do entry[6] = alive and alive[i] or 0 end
local condemned = {}
for _, worker in ipairs(redis.call('ZRANGE', P .. 'condemned', 0, -1)) do
  if redis.call('ZSCORE', P .. 'workers', worker) then condemned[#condemned + 1] = worker end
end
return {
  'leader', leads and 1 or 0,
  'epoch', tonumber(epoch),
  'seeing', counts and 1 or 0,
  'workers', workers,
  'absent', absent,
  'doubtful', doubtful,
  'condemned', condemned,
  'obituaries', redis.call('HGETALL', P .. 'obituaries'),
}
