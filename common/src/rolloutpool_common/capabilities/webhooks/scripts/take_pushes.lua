-- Lease due pushes: no other worker gets them until the lease ends. No receiver, and no owner, gets more than its share of
-- a worker, so one that hangs delays nobody else's pushes. A receiver is `owner scheme://host:port/path` of a webhook.
-- ARGV: most pushes, ms of the lease, most per receiver, most per owner, how many due ones to look at, then receiver,
-- number, ... for the pushes that the worker makes already.
-- Answer: a list of {uid, attempt, receiver, failures of the receiver in a row}; attempts count from 1.
local limit, lease_ms, share, owner_share, look =
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local function owner_of(receiver) return string.match(receiver, '^(.-) ') or '' end
local busy, busy_owners, receivers, downs = {}, {}, {}, {}
local function add(receiver, n)
  busy[receiver] = (busy[receiver] or 0) + n
  busy_owners[owner_of(receiver)] = (busy_owners[owner_of(receiver)] or 0) + n
end
for i = 6, #ARGV, 2 do add(ARGV[i], tonumber(ARGV[i + 1])) end

-- Remembered by batch: many due pushes are of one batch, and this script looks at hundreds.
local function receiver_of(uid)
  local batch = string.match(uid, '^(.*)%-%d+$') or ''
  if not receivers[batch] then
    local push, owner = unpack(redis.call('HMGET', k_batch(batch), 'push', 'owner'))
    local url = string.match(push or '', '"callback_url":"(%a+://[^?#"\\]+)') or ''
    receivers[batch] = (owner or '') .. ' ' .. string.gsub(url, '^%a+://[^/]+', string.lower)
  end
  return receivers[batch]
end
local function down_of(receiver)
  if not downs[receiver] then
    local failures, next_ms = unpack(redis.call('HMGET', P .. 'push:down:' .. receiver, 'failures', 'next_ms'))
    downs[receiver] = { tonumber(failures or '0'), tonumber(next_ms or '0') }
  end
  return unpack(downs[receiver])
end

-- 1. The earliest due pushes, except those of receivers that have their share. Who was down is tried by one push, and
-- what is for somebody who is down waits with him.
local now, taken = now_ms(), {}
local function look_once()
  local moved, passed_over = 0, {}
  local due = redis.call('ZRANGEBYSCORE', P .. 'push:due', '-inf', str(now), 'LIMIT', 0, look)
  for _, uid in ipairs(due) do
    if #taken == limit then break end
    local receiver = receiver_of(uid)
    local failures, next_ms = down_of(receiver)
    if now < next_ms then
      redis.call('ZADD', P .. 'push:due', str(next_ms), uid)
      moved = moved + 1
    elseif
      (busy[receiver] or 0) < (failures > 0 and 1 or share) and (busy_owners[owner_of(receiver)] or 0) < owner_share
    then
      add(receiver, 1)
      redis.call('ZADD', P .. 'push:due', str(now + lease_ms), uid)
      taken[#taken + 1] = { uid, redis.call('HINCRBY', P .. 'push:attempts', uid, 1), receiver, failures }
    else
      passed_over[#passed_over + 1] = uid
    end
  end
  if #due < look or #taken == limit then return false end
  -- 2. If more may be due, those that were passed over go behind them. They stay due, and the next look finds the others.
  for _, uid in ipairs(passed_over) do redis.call('ZADD', P .. 'push:due', str(now), uid) end
  return moved > 0
end
-- 3. It looks on while it finds what waits with its receiver: 100,000 of these hid all others for most of a minute.
for _ = 1, 10 do
  if not look_once() then break end
end
return taken
