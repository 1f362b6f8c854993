-- Declare a worker dead, after one last look.
-- ARGV: worker, the beat on which the verdict rests or '' (its parent saw it end), whether a lifeline saves it (1 | 0).
-- Answer: 1 if it is declared dead, now or before; 0: it has beaten, or is subscribed again, or has left.
-- From here on `claim.lua` refuses it until it announces itself again. Its rollouts are put back (release.lua), and then it
-- is forgotten (deregister.lua).
local worker, beat, look = ARGV[1], ARGV[2], ARGV[3]
local listed = redis.call('ZSCORE', P .. 'workers', worker)
if not listed and redis.call('EXISTS', k_worker(worker, 'claims')) == 0 then return 0 end
if beat ~= '' and listed ~= beat then return 0 end
if look == '1' and redis.call('PUBSUB', 'NUMSUB', P .. 'life:' .. worker)[2] > 0 then return 0 end
local now = now_ms()
if redis.call('ZADD', P .. 'condemned', 'NX', str(now), worker) == 1 then count('workers_lost') end
-- One that never announces itself again is remembered for an hour, longer than a process is stopped and goes on.
redis.call('ZREMRANGEBYSCORE', P .. 'condemned', '-inf', str(now - 3600000))
return 1
