-- Keep the reply to a call, by the worker that has the session, and tell the door that holds its connection.
-- ARGV: batch, index, token, n, reply (JSON).
-- Answer: its place among the replies, from 1; 0 where the worker's claim is not the rollout's any more.
local batch, index, token, n, reply = unpack(ARGV, 1, 5)
local uid = batch .. '-' .. index
local key, replies = k_rollout(uid, 'session'), k_rollout(uid, 'replies')
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
local known = redis.call('HGET', replies, n)
local place
if known then
  place = tonumber(string.match(known, '^%d+'))
else
  place = redis.call('HINCRBY', key, 'replied', 1)
  redis.call('HSET', replies, n, place .. ' ' .. reply)
  redis.call('HINCRBY', key, 'open', -1)
  redis.call('HDEL', key, 'idle')
end
local by = redis.call('HGET', key, 'held:' .. n)
local address = by and string.match(by, '^(%S+) ')
if address then
  redis.call('RPUSH', k_door(address, 'ready'), uid .. ' ' .. n .. ' ' .. reply)
  redis.call('PEXPIRE', k_door(address, 'ready'), 60000)
end
return place
