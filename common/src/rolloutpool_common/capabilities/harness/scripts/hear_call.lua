-- Note how the connection of a call ended, unless another one holds the call meanwhile.
-- ARGV: uid, n, holder, `taken` (the program has its last byte) or `cut`.
local key, n = k_rollout(ARGV[1], 'session'), ARGV[2]
if redis.call('HGET', key, 'held:' .. n) ~= ARGV[3] then return 0 end
if ARGV[4] == 'taken' then redis.call('HDEL', key, 'held:' .. n) else redis.call('HSET', key, 'held:' .. n, 'cut') end
return 1
