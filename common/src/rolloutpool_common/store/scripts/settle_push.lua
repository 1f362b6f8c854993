-- Note what became of a push.
-- ARGV: batch, uid, outcome, ms until the retry.
-- The worker that leased it says `delivered`, `dead` (given up) or `retry`; `stopped` says that its rollout was cancelled
-- after it had ended.
-- Answer: 1, or 0: the push was not due any more.
local batch, uid, outcome = ARGV[1], ARGV[2], ARGV[3]
if outcome == 'retry' then
  -- A cancel may have stopped it meanwhile, and it must not come back.
  if not redis.call('ZSCORE', P .. 'push:due', uid) then return 0 end
  redis.call('ZADD', P .. 'push:due', str(now_ms() + tonumber(ARGV[4])), uid)
  return 1
end
if end_push(batch, uid, outcome) == 0 then return 0 end
-- Whoever takes pushes is there, as one who reads.
if outcome == 'delivered' then renew_lease(batch) end
if outcome == 'dead' then
  redis.call('LPUSH', P .. 'push:dead', uid)
  redis.call('LTRIM', P .. 'push:dead', 0, 9999)
end
return 1
