-- Note that a worker is alive, and tell it what it must know.
-- ARGV: worker, then field, value, ... of what it announces, or of what its beat says.
-- Answer: known (1, or 0: Redis has no announcement of it, so it must announce itself again), condemned (1: it was declared
-- dead, and must end; nothing was written), epoch, stop (the tokens of the claims that it must stop running, each told
-- once; at most 1000, the others with the next beat), suspects (how many wait for an isolated worker), doubts (how
-- many shapes of deltas are doubted), and what capabilities add.
local worker = ARGV[1]
-- What it had was given to others. Under the same name nobody could tell what it claims now from what it had before, so
-- neither a beat nor an announcement brings it back.
local condemned = redis.call('ZSCORE', P .. 'condemned', worker)
local epoch = tonumber(epoch())
if not condemned then
  redis.call('ZADD', P .. 'workers', str(now_ms()), worker)
  redis.call('HSET', k_worker(worker), 'epoch', epoch, unpack(ARGV, 2))
end
local answer = {
  'known', redis.call('HEXISTS', k_worker(worker), 'about'),
  'condemned', condemned and 1 or 0,
  'epoch', epoch,
  'stop', redis.call('SPOP', k_worker(worker, 'stop'), 1000),
  'suspects', redis.call('ZCARD', P .. 'suspects'),
  'doubts', redis.call('HLEN', P .. 'doubts'),
}
-- @on_beat(answer)
return answer
