-- Take or keep the reconciler's lock, and see what there is to do.
-- ARGV: process, ms that the lock lasts.
-- Answer: leader (1 if this process leads, else 0), chores (names of the lists below that have something due; of a process
-- that does not lead, none). Where nothing has changed, this is all that a round of the reconciler asks.
local holder = redis.call('GET', P .. 'leader')
if holder and holder ~= ARGV[1] then return { 'leader', 0, 'chores', {} } end
redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
local chores, now = {}, str(now_ms())
for _, list in ipairs({ 'cancelling', 'late', 'precancelled' }) do
  if redis.call('EXISTS', P .. list) == 1 then chores[#chores + 1] = list end
end
for _, list in ipairs({ 'delayed', 'deadlines', 'ended' }) do
  if #redis.call('ZRANGEBYSCORE', P .. list, '-inf', now, 'LIMIT', 0, 1) > 0 then chores[#chores + 1] = list end
end
-- @on_lead(chores, now)
return { 'leader', 1, 'chores', chores }
