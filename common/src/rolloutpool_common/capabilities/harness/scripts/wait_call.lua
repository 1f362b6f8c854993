-- Look after a call that waits for its answer: its worker may have died, or may have lost sight of it.
-- ARGV: batch, index, n.
-- Answer: outcome (`waits`, `answered`, `over`), reply ('' without one).
local batch, index, n = ARGV[1], ARGV[2], ARGV[3]
local uid = batch .. '-' .. index
local reply = redis.call('HGET', k_rollout(uid, 'replies'), n)
if reply then return { 'outcome', 'answered', 'reply', reply } end
if is_sampled(uid) or redis.call('EXISTS', k_batch(batch)) == 0 then return { 'outcome', 'over', 'reply', '' } end
wake_session(batch, index)
return { 'outcome', 'waits', 'reply', '' }
