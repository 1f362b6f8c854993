-- Take or keep the reconciler's lock. ARGV: process, ms. -> 1 leader | 0 not
local holder = redis.call('GET', P .. 'leader')
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
return 1
