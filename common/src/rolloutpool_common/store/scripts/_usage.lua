-- Put in front of the scripts that change what an owner holds of the pool (usage.py). `what` is one of open, weight, bytes and
-- reserved. The sums over all owners are those of the owner ''.
local DAY_MS = 86400000
-- What Redis takes for a rollout beside its texts: about 600 bytes, for its hash and its entries in lists.
local BESIDE = 600

local function k_reserve(owner, run) return P .. 'reserve:' .. owner .. '/' .. run end

local function used(owner, what) return tonumber(redis.call('HGET', P .. 'usage', what .. ':' .. owner) or '0') end

local function use(owner, what, n)
  if n == 0 then return end
  for _, whose in ipairs({ owner, '' }) do
    local field = what .. ':' .. whose
    if redis.call('HINCRBY', P .. 'usage', field, str(n)) <= 0 then redis.call('HDEL', P .. 'usage', field) end
  end
end

-- Count bytes that a batch holds from now on, until it is deleted.
local function hold_bytes(batch, n)
  local owner, counted = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'reserve'))
  if not counted or n == 0 then return end
  redis.call('HINCRBY', k_batch(batch), 'held_bytes', str(n))
  use(owner, 'bytes', n)
end

-- Nothing of a run is open: what was not learnt need not be kept. What was, is kept for a day, as results are.
local function drop_reserve(key)
  if redis.call('HDEL', key, 'open') == 0 then return end
  if redis.call('HEXISTS', key, 'learnt') == 1 then redis.call('PEXPIRE', key, DAY_MS) else redis.call('DEL', key) end
end

-- Take what has ended of a batch out of what its owner holds. A worker of an older release ends rollouts and knows nothing of
-- this; they are found here at the next end, when the batch is deleted, or by recount_usage.lua.
local function settle_usage(batch)
  local owner, key, total, ended, settled, attachment_bytes, weight = unpack(redis.call(
    'HMGET', k_batch(batch), 'owner', 'reserve', 'total', 'ended', 'settled', 'attachment_bytes', 'weight'
  ))
  local n = tonumber(ended or '0') - tonumber(settled or '0')
  -- A batch that an older release has accepted was never counted.
  if not key or n <= 0 then return end
  redis.call('HSET', k_batch(batch), 'settled', ended)
  local each = tonumber(redis.call('HGET', key, 'bytes') or '0') + tonumber(attachment_bytes or '0')
  use(owner, 'open', -n)
  use(owner, 'reserved', -n * each)
  if redis.call('HINCRBY', key, 'open', -n) <= 0 then drop_reserve(key) end
  if ended == total then use(owner, 'weight', -tonumber(weight or '1')) end
end

-- Learn what a rollout of this owner and run takes at most: the reserve rises by a fifth where one took more, and falls by a
-- hundredth where it took less, so that it comes to stand above 95 of 100. It rises fast and falls slowly, because too small a
-- reserve costs others their room, and too large a one only costs its owner time.
local function learn(owner, key, peak)
  local each, open = unpack(redis.call('HMGET', key, 'bytes', 'open'))
  if not each then return end
  each = tonumber(each)
  local better = peak > each and math.min(peak, math.ceil(each * 1.21)) or math.max(peak, math.floor(each * 0.99))
  redis.call('HSET', key, 'bytes', str(better), 'learnt', 1)
  use(owner, 'reserved', (better - each) * tonumber(open or '0'))
end

-- A rollout has ended just now: what it keeps takes the place of what was reserved for it. `size` is the bytes of its result,
-- its row and its attachments; `peak` leaves the attachments out, for which its batch has a reserve of its own.
local function account_end(batch, index, status, size, peak)
  hold_bytes(batch, size + BESIDE)
  local uid = batch .. '-' .. index
  local journaled = redis.call('HGET', k_rollout(uid), 'journaled')
  if journaled then redis.call('HDEL', k_rollout(uid), 'journaled') end
  -- What fails, or is cancelled, says little of the size of what succeeds.
  if status == 'completed' then
    local owner, key = unpack(redis.call('HMGET', k_batch(batch), 'owner', 'reserve'))
    if key then learn(owner, key, math.max(tonumber(journaled or '0'), peak) + BESIDE) end
  end
  -- Last: with the last open rollout of a run goes what was not learnt.
  settle_usage(batch)
end
