-- Note shapes of deltas that a worker doubts (doubts.py).
-- ARGV: worker, how many shapes are kept at most, then for each: shape, ms since its last equal comparison in this worker.
-- Answer: 1.
-- A shape keeps the name of who found it first. The time since which its deltas may be wrong is the earliest of all workers'.
local worker, most, now = ARGV[1], tonumber(ARGV[2]), now_ms()
for i = 3, #ARGV, 2 do
  local shape, since = ARGV[i], now - tonumber(ARGV[i + 1])
  local since_then, found = string.match(redis.call('HGET', P .. 'doubts', shape) or '', '^(%d+) (.*)$')
  if found then
    redis.call('HSET', P .. 'doubts', shape, str(math.min(since, tonumber(since_then))) .. ' ' .. found)
  elseif redis.call('HLEN', P .. 'doubts') < most then
    redis.call('HSET', P .. 'doubts', shape, str(since) .. ' ' .. str(now) .. ' ' .. worker)
    count('doubts')
  end
end
return 1
