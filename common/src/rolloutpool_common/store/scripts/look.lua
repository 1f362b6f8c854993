-- One look of the reconciler at all workers; it takes or keeps the reconciler's lock in the same step.
-- ARGV: process, ms that the lock lasts.
-- Answer: leader (1 if this process leads, else 0), epoch, seeing (0: this account may not count
-- subscribers), workers (a list of worker, beat, worker, beat, ...), absent (of each worker without a lifeline: worker,
-- whether its lifeline could be seen, host, supervisor or '', whether it has beaten since Redis was started, subscribers of
-- the supervisor's lifeline), condemned (workers that are declared dead and still listed), obituaries (a list of worker,
-- end, worker, end, ...).
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
  'condemned', condemned,
  'obituaries', redis.call('HGETALL', P .. 'obituaries'),
}
