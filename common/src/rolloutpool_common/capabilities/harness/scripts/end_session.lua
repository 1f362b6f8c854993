-- End a session by its owner's word: it takes no further calls, and its worker makes the result.
-- ARGV: batch, index, how it ends (JSON).
-- Answer: `ok`, also for the same end once more; `other` where it was ended otherwise; `over`, or `gone`.
local batch, index, how = ARGV[1], ARGV[2], ARGV[3]
local uid = batch .. '-' .. index
local key = k_rollout(uid, 'session')
if not is_there(batch, index) then return 'gone' end
local over = redis.call('HGET', key, 'over')
if over and over ~= how then return 'other' end
if over then return 'ok' end
if TERMINAL[redis.call('HGET', k_rollout(uid), 'status') or ''] then return 'over' end
redis.call('HSET', key, 'over', how)
wake_session(batch, index)
return 'ok'
