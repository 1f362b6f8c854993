-- Commit a staged batch, once per idempotency key. ARGV: batch, idempotency key or '', digest, total, priority, run,
-- most open rollouts, then field, value ... of the batch hash.
-- -> {batch, 1 created | 0 existing | -1 too many open, digest of what exists | how many are open, index, ...}; the indexes
-- were cancelled before they came and have to be ended
local b, idem, digest, total, priority, run = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
-- The same batch again: this very commit was made, and its answer was lost.
if redis.call('EXISTS', k_batch(b)) == 1 then return { b, 1, digest } end
local parts = { 'items', 'groups', 'deadlines', 'group_counts' }
local staged_names = P .. 'stage:' .. b .. ':names'
local function drop_staged()
  for _, part in ipairs(parts) do redis.call('UNLINK', P .. 'stage:' .. b .. ':' .. part) end
  redis.call('UNLINK', staged_names)
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
-- Named in the same breath: a cancel by name finds either the rollout or nobody, and then leaves a precancel.
local answer, precancelled = { b, 1, digest }, {}
local owner = redis.call('HGET', k_batch(b), 'owner')
local names = redis.call('HGETALL', staged_names)
local has_precancels = redis.call('EXISTS', P .. 'precancels') == 1
for i = 1, #names, 2 do
  local index, name = names[i], names[i + 1]
  redis.call('SET', k_name(owner, name), b .. '-' .. index)
  local holds = has_precancels and redis.call('ZSCORE', P .. 'precancels', owner .. ':' .. name)
  if holds then
    redis.call('ZREM', P .. 'precancels', owner .. ':' .. name)
    if tonumber(holds) > now then
      redis.call('SADD', P .. 'precancelled', b .. '-' .. index)
      precancelled[index] = true
      answer[#answer + 1] = tonumber(index)
    end
  end
end
redis.call('UNLINK', staged_names)
local chunk = {}
for i = 0, total - 1 do
  if not precancelled[str(i)] then chunk[#chunk + 1] = i end
  if #chunk == 1000 or (i == total - 1 and #chunk > 0) then
    redis.call('RPUSH', k_batch(b, 'outbox'), unpack(chunk))
    chunk = {}
  end
end
if redis.call('EXISTS', k_batch(b, 'outbox')) == 1 then enlist(b, run, priority, false) end
count('batches')
count('accepted', total)
return answer
