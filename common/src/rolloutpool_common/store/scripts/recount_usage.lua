-- Count anew what an owner holds. A process of an older release ends rollouts and deletes batches without counting it here.
-- ARGV: owner, batches that it may have at most: each takes Redis some microseconds, in which it answers nobody else.
-- Answer: 1, or 0: it was right, or the owner has more batches.
local owner = ARGV[1]
if redis.call('ZCARD', k_batches(false, owner)) + redis.call('ZCARD', k_batches(true, owner)) > tonumber(ARGV[2]) then
  return 0
end
local held, runs = { open = 0, weight = 0, bytes = 0, reserved = 0 }, {}
for _, v1 in ipairs({ false, true }) do
  for _, batch in ipairs(redis.call('ZRANGE', k_batches(v1, owner), 0, -1)) do
    local key, total, ended, settled, bytes, attachment_bytes, weight = unpack(redis.call(
      'HMGET', k_batch(batch), 'reserve', 'total', 'ended', 'settled', 'held_bytes', 'attachment_bytes', 'weight'
    ))
    if key then
      local open = tonumber(total) - tonumber(ended or '0')
      if ended and ended ~= settled then redis.call('HSET', k_batch(batch), 'settled', ended) end
      held.bytes = held.bytes + tonumber(bytes or '0')
      held.open = held.open + open
      held.reserved = held.reserved + open * tonumber(attachment_bytes or '0')
      if open > 0 then held.weight = held.weight + tonumber(weight or '1') end
      runs[key] = (runs[key] or 0) + open
    end
  end
end
for key, open in pairs(runs) do
  held.reserved = held.reserved + open * tonumber(redis.call('HGET', key, 'bytes') or '0')
  if open > 0 then
    redis.call('HSET', key, 'open', str(open))
    redis.call('PERSIST', key)
  else
    drop_reserve(key)
  end
end
local changed = 0
for what, n in pairs(held) do
  if n ~= used(owner, what) then
    use(owner, what, n - used(owner, what))
    changed = 1
  end
end
return changed
