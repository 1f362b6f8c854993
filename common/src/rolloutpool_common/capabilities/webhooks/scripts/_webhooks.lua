-- What the scripts of webhooks share, and their part in the kernel's (`webhooks_on_…`).

-- A push that was due is over: it was delivered, given up, or stopped.
local function end_push(batch, uid, outcome)
  -- It was settled before, by this very call or by a cancel, and must not be counted twice.
  if redis.call('ZREM', P .. 'push:due', uid) == 0 then return 0 end
  count('push:' .. outcome)
  redis.call('HDEL', P .. 'push:attempts', uid)
  if redis.call('EXISTS', k_batch(batch)) == 1 then
    local pending = redis.call('HINCRBY', k_batch(batch), 'push:pending', -1)
    redis.call('HINCRBY', k_batch(batch), 'push:' .. outcome, 1)
    -- It was kept for this (hold_pushes.lua).
    if pending <= 0 and redis.call('HEXISTS', k_batch(batch), 'held_for_pushes') == 1 then
      redis.call('ZADD', P .. 'ended', 'XX', str(now_ms()), batch)
    end
  end
  return 1
end

-- Its result is due at the webhook.
local function webhooks_on_end(batch, uid, _, _, now)
  redis.call('ZADD', P .. 'push:due', str(now), uid)
  redis.call('HINCRBY', k_batch(batch), 'push:pending', 1)
end

-- It was cancelled after it had ended. A cancelled rollout's own result is pushed all the same.
local function webhooks_on_late_cancel(batch, uid) end_push(batch, uid, 'stopped') end

-- `pushes`: how many results are to be pushed, now or later.
local function webhooks_on_beat(answer)
  answer[#answer + 1] = 'pushes'
  answer[#answer + 1] = redis.call('ZCARD', P .. 'push:due')
end
