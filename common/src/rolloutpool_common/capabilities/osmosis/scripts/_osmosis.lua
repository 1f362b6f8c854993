-- What the scripts of polled rollouts share, and their part in the kernel's (`osmosis_on_…`).
local UNPOLLED = P .. 'leases:polled'
local function k_polled(owner) return P .. 'polled:' .. owner end

-- The holder of its lease has polled a rollout, so its lease lasts from now on again. One that was found over stays over.
local function renew_polled(batch)
  local lease_ms, finished, cancelled, forsaken = unpack(redis.call(
    'HMGET', k_batch(batch), 'polling_ms', 'finished_ms', 'cancelled_ms', 'forsaken'
  ))
  if not lease_ms or finished or cancelled or forsaken then return end
  put_off(UNPOLLED, batch, lease_ms)
end

-- The lease begins in the step that commits the batch: without it nothing would end a rollout whose caller has lost the answer
-- to its submit.
local function osmosis_on_commit(batch, _, owner, names)
  if redis.call('HEXISTS', k_batch(batch), 'polling_lease') == 0 then return end
  renew_polled(batch)
  for i = 1, #names, 2 do
    redis.call('HSET', k_polled(owner), names[i + 1], batch .. '-' .. names[i])
    redis.call('HSET', k_batch(batch), 'polled_name', names[i + 1])
  end
end

-- The holder waits for each change of the status, and not for the end alone.
local function osmosis_on_claim(_, _, _, batch) wake(batch) end

local function osmosis_on_stage(batch)
  if redis.call('HEXISTS', k_batch(batch), 'polling_lease') == 1 then wake(batch) end
end

local function osmosis_on_end(batch)
  local name, owner = unpack(redis.call('HMGET', k_batch(batch), 'polled_name', 'owner'))
  redis.call('ZREM', UNPOLLED, batch)
  if name then redis.call('HDEL', k_polled(owner), name) end
end

-- Some lease may be over. Whether anybody could have polled meanwhile is known after the reconciler's tick (unpolled.lua).
local function osmosis_on_lead(chores, _)
  if redis.call('EXISTS', UNPOLLED) == 0 then return end
  local due = redis.call('ZRANGEBYSCORE', UNPOLLED, '-inf', str(served_ms()), 'LIMIT', 0, 1)
  if #due > 0 then chores[#chores + 1] = 'osmosis' end
end
