-- Commit a batch, once per idempotency key. Its rollouts were staged, or come with this call.
-- ARGV: batch, key of its idempotency record or '', digest of the request, number of rollouts, priority, run, how many
-- rollouts may be open in the whole pool, owner, name of the run or '', weight, bytes that come now, bytes that each rollout
-- may attach, the owner's quota (open, bytes, weight; each '' without one), bytes to reserve for a rollout of a new run,
-- Redis' memory (in use, limit; 0: it has none), how many of the next values belong to the rollouts (0: they were staged),
-- then part, field, value, ... of the rollouts, then field, value, ... of the batch's hash.
-- Answer: outcome. `created`: the batch exists; with `batch`, `digest`, and `precancelled` (indexes that were cancelled
-- before they came and have to be ended). `existing`: the key was used before; with `batch` and `digest` of that time.
-- `unstaged`: what was staged is not all there, and must be staged again.
-- `refused`: with `cause` (store.errors.RefusalCause), and of what limits it `now` and `most`.
--
-- Who may submit (usage.py says why):
-- 1. Who is past the quota of their key is refused.
-- 2. Where the whole pool would have too many open rollouts, or too little memory for what is accepted to end, an owner is
--    let in up to their share: the limit, divided by the owners who hold some of it.
-- 3. Nobody is let in for whose rollouts there is no room in Redis at this moment.
local batch, idempotency, digest, total, priority, run = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local max_open, owner, run_name = tonumber(ARGV[7]), ARGV[8], ARGV[9]
local weight, size, attachment_each = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local quota_open, quota_bytes, quota_weight = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local new_each, memory, memory_limit = tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18])
local MUCH = 0.85
-- The same batch again: this very commit was made before, and its answer was lost.
if redis.call('EXISTS', k_batch(batch)) == 1 then
  return { 'outcome', 'created', 'batch', batch, 'digest', digest, 'precancelled', {} }
end
local parts = { 'items', 'groups', 'deadlines', 'group_counts', 'trunk', 'needs' }
local staged_names = P .. 'stage:' .. batch .. ':names'
local first_carried = 20
local first_field = first_carried + tonumber(ARGV[19])
local is_staged = first_field == first_carried
local function drop_staged()
  if not is_staged then return end
  for _, part in ipairs(parts) do redis.call('UNLINK', P .. 'stage:' .. batch .. ':' .. part) end
  redis.call('UNLINK', staged_names)
end
-- 1. Refuse a repeated submit, and one for which there is no room.
if idempotency ~= '' then
  local seen_batch, seen_digest = unpack(redis.call('HMGET', idempotency, 'batch', 'digest'))
  if seen_batch and redis.call('HEXISTS', k_batch(seen_batch), 'deleting') == 1 then
    -- It is about to be gone, and its key is free then (forget_usage.lua).
    redis.call('UNLINK', idempotency)
  elseif seen_batch then
    drop_staged()
    return { 'outcome', 'existing', 'batch', seen_batch, 'digest', seen_digest }
  end
end
-- Redis was started again since, and has lost it with its last second. Rollouts without an entry could never end.
if is_staged and redis.call('HLEN', P .. 'stage:' .. batch .. ':items') ~= total then return { 'outcome', 'unstaged' } end
local open, reserve = tonumber(redis.call('GET', P .. 'open') or '0'), k_reserve(owner, run_name)
local each = tonumber(redis.call('HGET', reserve, 'bytes') or new_each)
local reserved = total * (each + attachment_each)
local holds = used(owner, 'bytes') + used(owner, 'reserved')

-- Among how many owners something is shared: those that hold some, and this one.
local function owners_of(kinds)
  local found, n, usage = { [owner] = true }, 1, redis.call('HGETALL', P .. 'usage')
  for i = 1, #usage, 2 do
    local what, whose = string.match(usage[i], '^(%w+):(.*)$')
    if whose ~= '' and kinds[what] and not found[whose] then
      found[whose] = true
      n = n + 1
    end
  end
  return n
end

-- What limits this submit: cause, how much there is now, and how much there may be; nothing if it may come.
local function obstacle()
  if quota_open and used(owner, 'open') + total > quota_open then return 'quota_open', used(owner, 'open'), quota_open end
  if quota_weight and used(owner, 'weight') + weight > quota_weight then
    return 'quota_weight', used(owner, 'weight'), quota_weight
  end
  if quota_bytes and holds + reserved + size > quota_bytes then return 'quota_bytes', holds, quota_bytes end
  if open + total > max_open then
    local owners = owners_of({ open = true })
    local share = math.floor(max_open / owners)
    if owners == 1 then return 'open', open, max_open end
    if used(owner, 'open') + total > share then return 'share_open', used(owner, 'open'), share end
  end
  if memory_limit == 0 then return end
  -- What was accepted by an older release, and is not counted, needs what a new run needs.
  local counted, promised = used('', 'open'), used('', 'reserved')
  local needs = math.max(open - counted, 0) * new_each + promised + reserved
  -- What runs may be larger than what its run has taught, so the places of the workers count as those of a new run.
  local places = math.min(open + total, tonumber(redis.call('HGET', P .. 'room', 'slots') or open + total))
  needs = needs + places * math.max(new_each - (promised + reserved) / (counted + total), 0)
  local is_short = memory + needs + size > memory_limit
  if not is_short and memory <= MUCH * memory_limit then return end
  local owners = owners_of({ bytes = true, reserved = true })
  local share = math.floor(memory_limit / owners)
  if owners > 1 and holds + reserved + size > share then return 'share_bytes', holds, share end
  if owners == 1 and is_short then return 'memory', memory + needs - reserved, memory_limit end
  if memory + reserved + size > memory_limit then return 'memory', memory, memory_limit end
end
local cause, now_held, most = obstacle()
if cause then
  drop_staged()
  count('refused:' .. cause .. ':' .. owner)
  return { 'outcome', 'refused', 'cause', cause, 'now', str(now_held), 'most', str(most) }
end
redis.call('INCRBY', P .. 'open', total)
use(owner, 'open', total)
use(owner, 'weight', weight)
use(owner, 'bytes', size)
use(owner, 'reserved', reserved)
redis.call('HSETNX', reserve, 'bytes', each)
if redis.call('HINCRBY', reserve, 'open', total) == total then redis.call('PERSIST', reserve) end
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
  for i = first_carried, first_field - 1, 3 do
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
  'HSET', k_batch(batch), 'total', total, 'priority', priority, 'created_ms', str(now), 'run', run, 'owner', owner,
  'reserve', reserve, 'held_bytes', str(size),
  unpack(ARGV, first_field)
)
if redis.call('EXISTS', P .. 'older') == 1 then
  -- A worker of an older release could not read all of it. It gets none of these rollouts.
  redis.call('HSET', k_batch(batch), 'needs', with_release(redis.call('HGET', k_batch(batch), 'needs')))
  local own = redis.call('HGETALL', k_batch(batch, 'needs'))
  for i = 1, #own, 2 do redis.call('HSET', k_batch(batch, 'needs'), own[i], with_release(own[i + 1])) end
end
redis.call('SADD', P .. 'open_batches', batch)
if idempotency ~= '' then redis.call('HSET', k_batch(batch), 'idempotency', idempotency) end
local v1 = redis.call('HGET', k_batch(batch), 'v1')
renew_lease(batch)
-- @on_commit(batch, run, owner, names)
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
