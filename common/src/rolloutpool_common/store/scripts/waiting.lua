-- Note what a rollout waits for, or that it waits no more.
-- ARGV: batch, index, attempt, field of the batch that gets the note too ('' for none), note ('' takes it away).
-- Answer: 1, or 0: the batch has ended or is gone, and nothing was written.
local batch, index, attempt, field, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local uid = batch .. '-' .. index
local total, finished = unpack(redis.call('HMGET', k_batch(batch), 'total', 'finished_ms'))
if not total then return 0 end
if field ~= '' and (finished or note == '') then
  redis.call('HDEL', k_batch(batch), field)
elseif field ~= '' then
  redis.call('HSET', k_batch(batch), field, note)
end
-- A worker that was declared dead by mistake still waits, and another attempt runs: its note would not be true.
local status, present = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'attempt'))
if note ~= '' and status == 'running' and present == attempt then
  redis.call('HSET', k_rollout(uid), 'waits', attempt .. ' ' .. note)
elseif note == '' and present == attempt then
  redis.call('HDEL', k_rollout(uid), 'waits')
end
return (finished and note ~= '') and 0 or 1
