-- Add up how many bytes open rollouts may still attach (attachments.py), and forget batches that have none left.
-- ARGV: none.
-- Answer: the bytes.
local promised, key = 0, P .. 'attaching'
local known = redis.call('HGETALL', key)
for i = 1, #known, 2 do
  local total, ended = unpack(redis.call('HMGET', k_batch(known[i]), 'total', 'ended'))
  local open = tonumber(total or '0') - tonumber(ended or '0')
  -- The batch was deleted, or an older version has ended its last rollout.
  if open <= 0 then redis.call('HDEL', key, known[i]) else promised = promised + open * tonumber(known[i + 1]) end
end
return str(promised)
