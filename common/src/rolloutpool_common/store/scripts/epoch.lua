-- Check the version of the data, then notice that Redis was started again: the epoch rises once for each start.
-- ARGV: the version that the caller knows. -> {epoch, seconds that Redis is up, version of the data}
-- At another version nothing is changed, and the epoch is 0. See `schema.py` for the rules.
local version = tonumber(redis.call('GET', P .. 'schema'))
if not version then
  -- Version 1 wrote an epoch with each connection and no version.
  version = redis.call('EXISTS', P .. 'epoch') == 1 and 1 or tonumber(ARGV[1])
end
if version ~= tonumber(ARGV[1]) then return { 0, 0, version } end
local about = redis.call('INFO', 'server')
local run = string.match(about, 'run_id:(%w+)')
local seen = redis.call('HMGET', P .. 'epoch', 'number', 'run_id')
local n = tonumber(seen[1] or '0')
if seen[2] ~= run then
  n = n + 1
  redis.call('SET', P .. 'schema', version)
  redis.call('HSET', P .. 'epoch', 'number', n, 'run_id', run)
end
return { n, tonumber(string.match(about, 'uptime_in_seconds:(%d+)')), version }
