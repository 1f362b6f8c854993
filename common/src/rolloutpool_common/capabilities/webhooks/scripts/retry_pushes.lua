-- Make the pushes of a batch due now: those that wait, and those that were given up.
-- ARGV: batch, first index, last index.
-- Answer: how many of these are due.
local batch, first, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- While it is deleted, its results are gone already, and nothing would take the pushes off the list.
if redis.call('HEXISTS', k_batch(batch), 'deleting') == 1 then return 0 end
local receiver = redis.call('HGET', k_batch(batch), 'pushed_to')
if receiver then redis.call('DEL', P .. 'push:down:' .. receiver) end
local now, due = now_ms(), 0
for index = first, last do
  local uid = batch .. '-' .. str(index)
  if redis.call('SREM', k_batch(batch, 'undelivered'), str(index)) == 1 then
    redis.call('ZADD', P .. 'push:due', str(now), uid)
    redis.call('HINCRBY', k_batch(batch), 'push:dead', -1)
    redis.call('HINCRBY', k_batch(batch), 'push:pending', 1)
  end
  if redis.call('ZSCORE', P .. 'push:due', uid) then
    redis.call('ZADD', P .. 'push:due', str(now), uid)
    due = due + 1
  end
end
return due
