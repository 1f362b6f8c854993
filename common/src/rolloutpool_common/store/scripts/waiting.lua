-- Note what a rollout waits for, or that it waits no more.
-- ARGV: batch, index, attempt, place (an endpoint, or what lacks; '' where it is not counted), whether the batch gets the
-- note too ('1' or ''), note ('' takes it away), seconds for which it counts.
-- Answer: 1, or 0: the batch has ended or is gone, and nothing was written.
local batch, index, attempt, place, told, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local uid = batch .. '-' .. index
local total, finished = unpack(redis.call('HMGET', k_batch(batch), 'total', 'finished_ms'))
if not total then return 0 end
if place ~= '' then
  -- All that wait there, of every worker. A rollout that says nothing more is forgotten with its note.
  local all, field, counter = k_batch(batch, 'waits:' .. place), 'waits:' .. place, 'waiting:' .. place
  local now = now_ms()
  redis.call('ZREMRANGEBYSCORE', all, '-inf', now)
  if note == '' or finished then
    redis.call('ZREM', all, index)
  else
    local ms = math.max(math.ceil(tonumber(ARGV[7]) * 1000), 1)
    redis.call('ZADD', all, now + ms, index)
    redis.call('PEXPIRE', all, math.max(ms, redis.call('PTTL', all)))
  end
  local waiting = redis.call('ZCARD', all)
  if waiting == 0 or finished then
    redis.call('HDEL', k_batch(batch), field, counter)
  else
    redis.call('HSET', k_batch(batch), counter, waiting)
    if told then redis.call('HSET', k_batch(batch), field, note) end
  end
end
-- A worker that was declared dead by mistake still waits, and another attempt runs: its note would not be true.
local status, present = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'attempt'))
if note ~= '' and status == 'running' and present == attempt then
  redis.call('HSET', k_rollout(uid), 'waits', attempt .. ' ' .. note)
elseif note == '' and present == attempt then
  redis.call('HDEL', k_rollout(uid), 'waits')
end
return (finished and note ~= '') and 0 or 1
