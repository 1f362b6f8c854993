-- Check the version of the data, then notice whether Redis was started again since the last look.
--
-- What happens when Redis was started again (the epoch):
-- 1. A restart cuts every connection. Each new connection runs this script before anything else; Redis' run_id is new, so
--    the first of them raises the epoch. Whatever is written later is written in the new epoch.
-- 2. Redis may have lost the last second of its data: claims, journal records, results.
-- 3. Workers see the new epoch with their next beat. Each tells Redis again what it runs (restore.lua), and gives back what
--    Redis still lists for it although it has ended there (release.lua, counter `losses`).
-- 4. Cursors into a batch's results name the epoch. One of an earlier epoch begins again at the start, because results may
--    have been lost or stored in another order; readers know by the uid what they have already.
-- 5. For six seconds no worker is declared dead (reconciliation.py).
--
-- ARGV: the version that the caller writes, and the oldest one that it reads. Where it finds an older one, workers may live that
-- know only that: they get nothing new (`older`, see commit.lua), and once they are gone the version rises (offers.lua).
-- Answer: schema (version of the data), epoch (rises by one with each start of Redis), uptime_s (seconds since that start).
-- At another version nothing is changed, and epoch and uptime are 0. See `schema.py` for the rules.
local version = tonumber(redis.call('GET', P .. 'schema'))
if not version then
  -- Version 1 wrote an epoch with each connection and no version.
  version = redis.call('EXISTS', P .. 'epoch') == 1 and 1 or tonumber(ARGV[1])
end
local mine = tonumber(ARGV[1])
if version > mine or version < tonumber(ARGV[2]) then return { 'schema', version, 'epoch', 0, 'uptime_s', 0 } end
if version < mine then redis.call('SET', P .. 'older', 1) end
local server = redis.call('INFO', 'server')
local run_id = string.match(server, 'run_id:(%w+)')
local number, seen_run_id = unpack(redis.call('HMGET', P .. 'epoch', 'number', 'run_id'))
local epoch = tonumber(number or '0')
if seen_run_id ~= run_id then
  epoch = epoch + 1
  redis.call('SET', P .. 'schema', version)
  redis.call('HSET', P .. 'epoch', 'number', epoch, 'run_id', run_id)
end
return { 'schema', version, 'epoch', epoch, 'uptime_s', tonumber(string.match(server, 'uptime_in_seconds:(%d+)')) }
