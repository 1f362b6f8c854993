-- Commit a staged batch, once per idempotency key. ARGV: batch, idempotency key or '', digest, total, priority, run,
-- most open rollouts, then field, value ... of the batch hash.
-- -> {batch, 1 created | 0 existing | -1 too many open, digest of what exists | how many are open}
local b, idem, digest, total, priority, run = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
-- The same batch again: this very commit was made, and its answer was lost.
if redis.call('EXISTS', k_batch(b)) == 1 then return { b, 1, digest } end
local parts = { 'items', 'groups', 'deadlines', 'group_counts' }
local function drop_staged()
  for _, part in ipairs(parts) do redis.call('UNLINK', P .. 'stage:' .. b .. ':' .. part) end
end
if idem ~= '' then
  local seen = redis.call('HMGET', idem, 'batch', 'digest')
  if seen[1] then
    drop_staged()
    return { seen[1], 0, seen[2] }
  end
end
local open = tonumber(redis.call('GET', P .. 'open') or '0')
if open + total > tonumber(ARGV[7]) then
  drop_staged()
  return { b, -1, str(open) }
end
redis.call('INCRBY', P .. 'open', total)
if idem ~= '' then redis.call('HSET', idem, 'batch', b, 'digest', digest) end
local now = now_ms()
for _, part in ipairs(parts) do
  local staged = P .. 'stage:' .. b .. ':' .. part
  if redis.call('EXISTS', staged) == 1 then
    redis.call('RENAME', staged, k_batch(b, part))
    redis.call('PERSIST', k_batch(b, part))
  end
end
redis.call('HSET', k_batch(b), 'total', total, 'priority', priority, 'created_ms', str(now), 'run', run)
redis.call('HSET', k_batch(b), unpack(ARGV, 8))
if idem ~= '' then redis.call('HSET', k_batch(b), 'idem', idem) end
-- Staged deadlines are durations; from the commit on they are points in time.
local deadlines = redis.call('HGETALL', k_batch(b, 'deadlines'))
for i = 1, #deadlines, 2 do
  local at = str(now + tonumber(deadlines[i + 1]))
  redis.call('HSET', k_batch(b, 'deadlines'), deadlines[i], at)
  redis.call('ZADD', P .. 'deadlines', at, b .. '-' .. deadlines[i])
end
local chunk = {}
for i = 0, total - 1 do
  chunk[#chunk + 1] = i
  if #chunk == 1000 or i == total - 1 then
    redis.call('RPUSH', k_batch(b, 'outbox'), unpack(chunk))
    chunk = {}
  end
end
enlist(b, run, priority, false)
count('batches')
count('accepted', total)
return { b, 1, digest }
