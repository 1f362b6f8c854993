-- Take or keep the reconciler's lock.
-- ARGV: process, ms that the lock lasts.
-- Answer: 1 if this process leads, else 0.
local holder = redis.call('GET', P .. 'leader')
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
return 1
