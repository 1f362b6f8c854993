-- Note how the connection of a call ended, unless another one holds the call meanwhile.
-- ARGV: uid, n, holder, `taken` (the program has its last byte) or `cut`.
local key, n, holder = k_rollout(ARGV[1], 'session'), ARGV[2], ARGV[3]
if ARGV[4] == 'taken' then return taken_call(key, n, holder) end
if redis.call('HGET', key, 'held:' .. n) ~= holder then return 0 end
redis.call('HSET', key, 'held:' .. n, 'cut')
return 1
