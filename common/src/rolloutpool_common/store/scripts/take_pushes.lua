-- Lease due pushes: no other worker gets them until the lease ends. No receiver gets more than its share of a worker, so
-- one that hangs delays nobody else's pushes.
-- ARGV: most pushes, ms of the lease, most pushes per receiver, how many due ones to look at, then receiver, number, ...
-- for the pushes that the worker makes already. A receiver is the `host:port` of a webhook.
-- Answer: a list of {uid, attempt, receiver}; attempts count from 1.
local limit, lease_ms, share, look = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local busy, receivers = {}, {}
for i = 5, #ARGV, 2 do busy[ARGV[i]] = tonumber(ARGV[i + 1]) end

-- Remembered by batch: many due pushes are of one batch, and this script looks at hundreds.
local function receiver_of(uid)
  local batch = string.match(uid, '^(.*)%-%d+$') or ''
  if not receivers[batch] then
    local push = redis.call('HGET', k_batch(batch), 'push') or ''
    receivers[batch] = string.lower(string.match(push, '"callback_url":"%a+://([^/?#"\\]+)') or '')
  end
  return receivers[batch]
end

-- 1. The earliest due pushes, except those of receivers that have their share.
local now, taken, passed_over = now_ms(), {}, {}
local due = redis.call('ZRANGEBYSCORE', P .. 'push:due', '-inf', str(now), 'LIMIT', 0, look)
for _, uid in ipairs(due) do
  if #taken == limit then break end
  local receiver = receiver_of(uid)
  local n = busy[receiver] or 0
  if n < share then
    busy[receiver] = n + 1
    redis.call('ZADD', P .. 'push:due', str(now + lease_ms), uid)
    taken[#taken + 1] = { uid, redis.call('HINCRBY', P .. 'push:attempts', uid, 1), receiver }
  else
    passed_over[#passed_over + 1] = uid
  end
end
-- 2. If more may be due, those that were passed over go behind them. They stay due, and the next look finds the others.
if #due == look and #taken < limit then
  for _, uid in ipairs(passed_over) do redis.call('ZADD', P .. 'push:due', str(now), uid) end
end
return taken
