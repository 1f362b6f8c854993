-- End a place, by the runner that has it: its program has ended.
-- ARGV: batch, index, the place's number, token of the lease, how the session ends (JSON), or '' to have the program started once
-- more, and then what that counts as: `deaths` of the program, `losses` of its runner, or `nothing`.
-- Answer: 1; 0 where the place is another's.
local batch, index, number, token, how, counted = unpack(ARGV, 1, 6)
local uid = batch .. '-' .. index
local key = k_rollout(uid, 'session')
if not has_place(uid, number, token) then return 0 end
redis.call('HDEL', key, 'lease')
redis.call('ZREM', HELD, uid)
-- Of one that needs no program any more nothing is wanted.
if is_sampled(uid) then return 1 end
if how == '' then
  if counted ~= 'nothing' then redis.call('HINCRBY', key, counted, 1) end
  redis.call('ZADD', WANTED, str(now_ms()), uid)
else
  redis.call('HSETNX', key, 'over', how)
  wake_session(batch, index)
end
return 1
