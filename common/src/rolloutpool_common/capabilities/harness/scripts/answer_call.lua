-- Keep the reply to a call that has no turn, or whose turn was in the journal without it, by the worker that has the session.
-- ARGV: batch, index, token, n, reply (JSON).
-- Answer: its place among the replies, from 1; 0 where the worker's claim is not the rollout's any more.
local batch, index, token, n, reply = unpack(ARGV, 1, 5)
local uid = batch .. '-' .. index
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return 0 end
return keep_reply(uid, n, reply)
