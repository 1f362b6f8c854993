-- Notice that Redis was started again: then the epoch rises, once. -> {epoch, seconds that Redis is up}
local about = redis.call('INFO', 'server')
local run = string.match(about, 'run_id:(%w+)')
local seen = redis.call('HMGET', P .. 'epoch', 'number', 'run_id')
local n = tonumber(seen[1] or '0')
if seen[2] ~= run then
  n = n + 1
  redis.call('HSET', P .. 'epoch', 'number', n, 'run_id', run)
end
return { n, tonumber(string.match(about, 'uptime_in_seconds:(%d+)')) }
