-- Take a regrade, or note what was done of it.
-- ARGV: regrade, worker, ms until another worker may take it, rollouts that were done when this worker last looked ('' takes
-- it), rollouts that are done now, then field, increment, ... for its counters.
-- Answer: rollouts that are done; -1 where another worker has it, or it is gone.
local key, worker, now = P .. 'regrade:' .. ARGV[1], ARGV[2], now_ms()
local done, holder, lease = unpack(redis.call('HMGET', key, 'done', 'worker', 'lease'))
-- Without a worker ('') it is not taken: one is to be told of it, and not again as long as the lease holds.
local held = tonumber(lease or '0') > now and (worker == '' or (holder ~= '' and holder ~= worker))
if not done or held then return -1 end
redis.call('HSET', key, 'worker', worker, 'lease', str(now + tonumber(ARGV[3])))
-- A second arrival of the same call finds that they are done.
if ARGV[4] == '' or done ~= ARGV[4] then return tonumber(done) end
redis.call('HSET', key, 'done', ARGV[5])
for i = 6, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
return tonumber(ARGV[5])
