-- Add what a process has measured to the pool's sums, and note what it is at this moment.
-- ARGV: process, number of the report (from 1), what it is now (JSON), ms until it counts as gone, most endpoints, ms after
-- which an endpoint that nobody called makes room, then for each row: endpoint or '', field, increment.
-- Answer: 1, or 0 where this report came already.
local process, number, standing, gone_ms, most, idle_ms = unpack(ARGV, 1, 6)
local key = P .. 'process:' .. process
if tonumber(number) <= tonumber(redis.call('HGET', key, 'number') or '0') then return 0 end
local now = now_ms()
redis.call('HSET', key, 'number', number, 'standing', standing)
redis.call('PEXPIRE', key, gone_ms)
redis.call('ZADD', P .. 'processes', str(now), process)
redis.call('ZREMRANGEBYSCORE', P .. 'processes', '-inf', '(' .. str(now - tonumber(gone_ms)))

-- Under which name an endpoint is counted: its own, or `other` where there are too many. Callers choose endpoints.
local names = {}
local function name_of(endpoint)
  if endpoint == '' or endpoint == 'other' or names[endpoint] then return names[endpoint] or endpoint end
  local name = endpoint
  if not redis.call('ZSCORE', P .. 'endpoints', endpoint) and redis.call('ZCARD', P .. 'endpoints') >= tonumber(most) then
    local oldest, called = unpack(redis.call('ZRANGE', P .. 'endpoints', 0, 0, 'WITHSCORES'))
    if tonumber(called) < now - tonumber(idle_ms) then
      redis.call('ZREM', P .. 'endpoints', oldest)
      redis.call('DEL', P .. 'measures:' .. oldest)
    else
      name = 'other'
    end
  end
  if name ~= 'other' then redis.call('ZADD', P .. 'endpoints', str(now), endpoint) end
  names[endpoint] = name
  return name
end

for i = 7, #ARGV, 3 do
  local endpoint = name_of(ARGV[i])
  redis.call('HINCRBY', endpoint == '' and P .. 'measures' or (P .. 'measures:' .. endpoint), ARGV[i + 1], ARGV[i + 2])
end
return 1
