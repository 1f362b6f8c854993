-- Note what became of a push.
-- ARGV: batch, uid, outcome, receiver, the receiver's failures when it was leased, ms until the next attempt.
-- The worker that leased it says `delivered`, `dead` (given up), `retry` (this push failed) or `down` (its receiver did).
-- Answer: 1, or 0: the push was not due any more.
local batch, uid, outcome, receiver, failures, pause_ms =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local next_ms = now_ms() + pause_ms
local down = P .. 'push:down:' .. receiver
if outcome == 'down' then
  -- For retry_pushes.lua.
  if redis.call('EXISTS', k_batch(batch)) == 1 then redis.call('HSET', k_batch(batch), 'pushed_to', receiver) end
  -- Of the pushes that were under way together only the first counts.
  local counted, until_ms = unpack(redis.call('HMGET', down, 'failures', 'next_ms'))
  if tonumber(counted or '0') == failures then
    redis.call('HSET', down, 'failures', str(failures + 1), 'next_ms', str(next_ms))
    redis.call('PEXPIRE', down, pause_ms + 86400000)
  else
    next_ms = tonumber(until_ms or '0')
  end
end
if outcome == 'retry' or outcome == 'down' then
  -- A cancel may have stopped it meanwhile, and it must not come back.
  if not redis.call('ZSCORE', P .. 'push:due', uid) then return 0 end
  redis.call('ZADD', P .. 'push:due', str(next_ms), uid)
  return 1
end
if outcome == 'delivered' then redis.call('DEL', down) end
if end_push(batch, uid, outcome) == 0 then return 0 end
-- Whoever takes pushes is there, as one who reads.
if outcome == 'delivered' then renew_lease(batch) end
if outcome == 'dead' then
  redis.call('LPUSH', P .. 'push:dead', uid)
  redis.call('LTRIM', P .. 'push:dead', 0, 9999)
  if redis.call('EXISTS', k_batch(batch)) == 1 then
    redis.call('SADD', k_batch(batch, 'undelivered'), string.match(uid, '%d+$'))
  end
end
return 1
