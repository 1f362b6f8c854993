-- Commit a batch, once per idempotency key. Its rollouts were staged, or come with this call.
-- ARGV: batch, key of its idempotency record or '', digest of the request, number of rollouts, priority, run, how many
-- rollouts may be open in the whole pool, how many of the next values belong to the rollouts (0: they were staged), then
-- part, field, value, ... of the rollouts, then field, value, ... of the batch's hash.
-- Answer: outcome. `created`: the batch exists; with `batch`, `digest`, and `precancelled` (indexes that were cancelled
-- before they came and have to be ended). `existing`: the key was used before; with `batch` and `digest` of that time.
-- `refused`: too many rollouts would be open; with `open`, how many are open now.
local batch, idempotency, digest, total, priority, run = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
-- The same batch again: this very commit was made before, and its answer was lost.
if redis.call('EXISTS', k_batch(batch)) == 1 then
  return { 'outcome', 'created', 'batch', batch, 'digest', digest, 'precancelled', {} }
end
local parts = { 'items', 'groups', 'deadlines', 'group_counts', 'trunk', 'needs' }
local staged_names = P .. 'stage:' .. batch .. ':names'
local first_field = 9 + tonumber(ARGV[8])
local is_staged = first_field == 9
local function drop_staged()
  if not is_staged then return end
  for _, part in ipairs(parts) do redis.call('UNLINK', P .. 'stage:' .. batch .. ':' .. part) end
  redis.call('UNLINK', staged_names)
end
-- 1. Refuse a repeated submit, and one that is too large.
if idempotency ~= '' then
  local seen_batch, seen_digest = unpack(redis.call('HMGET', idempotency, 'batch', 'digest'))
  if seen_batch then
    drop_staged()
    return { 'outcome', 'existing', 'batch', seen_batch, 'digest', seen_digest }
  end
end
local open = tonumber(redis.call('GET', P .. 'open') or '0')
if open + total > tonumber(ARGV[7]) then
  drop_staged()
  return { 'outcome', 'refused', 'open', open }
end
redis.call('INCRBY', P .. 'open', total)
-- It does not expire while the batch runs; with the batch's end its time begins (end_rollout).
if idempotency ~= '' then redis.call('HSET', idempotency, 'batch', batch, 'digest', digest) end
-- 2. What was staged, or came with this call, becomes the batch's. Deadlines come as durations; from the commit on they
--    are points in time.
local now = now_ms()
local deadlines, names
if is_staged then
  for _, part in ipairs(parts) do
    local staged = P .. 'stage:' .. batch .. ':' .. part
    if redis.call('EXISTS', staged) == 1 then
      redis.call('RENAME', staged, k_batch(batch, part))
      -- A renamed key keeps its time to live, and staged keys have one.
      redis.call('PERSIST', k_batch(batch, part))
    end
  end
  deadlines, names = redis.call('HGETALL', k_batch(batch, 'deadlines')), redis.call('HGETALL', staged_names)
else
  local came = { names = {}, deadlines = {} }
  for i = 9, first_field - 1, 3 do
    local values = came[ARGV[i]] or {}
    came[ARGV[i]] = values
    values[#values + 1] = ARGV[i + 1]
    values[#values + 1] = ARGV[i + 2]
  end
  for _, part in ipairs({ 'items', 'groups', 'group_counts', 'needs' }) do
    if came[part] then redis.call('HSET', k_batch(batch, part), unpack(came[part])) end
  end
  deadlines, names = came.deadlines, came.names
end
for i = 1, #deadlines, 2 do
  local at = str(now + tonumber(deadlines[i + 1]))
  redis.call('HSET', k_batch(batch, 'deadlines'), deadlines[i], at)
  redis.call('ZADD', P .. 'deadlines', at, batch .. '-' .. deadlines[i])
end
-- 3. The batch itself.
redis.call(
  'HSET', k_batch(batch), 'total', total, 'priority', priority, 'created_ms', str(now), 'run', run,
  unpack(ARGV, first_field)
)
redis.call('SADD', P .. 'open_batches', batch)
if idempotency ~= '' then redis.call('HSET', k_batch(batch), 'idempotency', idempotency) end
local owner, v1, polling_ms = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'v1', 'polling_ms'))
-- Where too many runs are known, this one runs all the same, and nothing is known of it.
if run ~= batch then keep_run(run) end
renew_lease(batch)
-- In this same step too: without it nothing would end a rollout whose caller has lost the answer to its submit.
renew_lease(batch, true)
-- Its rollouts may attach so much each, and that much is kept free for them (promised_attachments.lua).
local attachment_bytes = redis.call('HGET', k_batch(batch), 'attachment_bytes')
if attachment_bytes then redis.call('HSET', P .. 'attaching', batch, attachment_bytes) end
for _, list in ipairs({ k_batches(v1), k_batches(v1, owner) }) do redis.call('ZADD', list, str(now), batch) end
-- The names are kept, for the rows of rollouts that have not ended. Protocol v1's rollouts are named by their result.
if v1 then
  redis.call('UNLINK', staged_names)
elseif #names > 0 then
  if is_staged then
    redis.call('RENAME', staged_names, k_batch(batch, 'names'))
    redis.call('PERSIST', k_batch(batch, 'names'))
  else
    redis.call('HSET', k_batch(batch, 'names'), unpack(names))
  end
end
-- 4. The callers' names become known in this same step. So a cancel by name either finds its rollout, or came before and
--    has left a precancel, which is applied here.
local precancelled, is_precancelled = {}, {}
-- Nearly always there are none; one look saves one per name.
local any_precancels = redis.call('EXISTS', P .. 'precancels') == 1
for i = 1, #names, 2 do
  local index, name = names[i], names[i + 1]
  redis.call('SET', k_name(owner, name), batch .. '-' .. index)
  if polling_ms then
    redis.call('HSET', k_polled(owner), name, batch .. '-' .. index)
    redis.call('HSET', k_batch(batch), 'polled_name', name)
  end
  local until_ms = any_precancels and redis.call('ZSCORE', P .. 'precancels', owner .. ':' .. name)
  if until_ms then
    redis.call('ZREM', P .. 'precancels', owner .. ':' .. name)
    -- One that has expired may still be here: they are cleaned up only when another is added.
    if tonumber(until_ms) > now then
      redis.call('SADD', P .. 'precancelled', batch .. '-' .. index)
      is_precancelled[index] = true
      precancelled[#precancelled + 1] = tonumber(index)
    end
  end
end
-- 5. All others wait in the outbox. In chunks, because Lua's `unpack` takes some thousands of values at most.
local chunk = {}
for i = 0, total - 1 do
  if not is_precancelled[str(i)] then chunk[#chunk + 1] = i end
  if #chunk == 1000 or (i == total - 1 and #chunk > 0) then
    redis.call('RPUSH', k_batch(batch, 'outbox'), unpack(chunk))
    chunk = {}
  end
end
if redis.call('EXISTS', k_batch(batch, 'outbox')) == 1 then enlist(batch, run, priority, false) end
count('batches')
count('accepted', total)
return { 'outcome', 'created', 'batch', batch, 'digest', digest, 'precancelled', precancelled }
