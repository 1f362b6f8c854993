-- Look after a call that waits for its answer: its worker may have died, or may have lost sight of it.
-- ARGV: batch, index, n, digest of the call.
-- Answer: outcome (`waits`, `answered`, `over`; `forgotten` where Redis has lost it with its last second), reply ('' without one).
local batch, index, n, digest = unpack(ARGV, 1, 4)
local uid = batch .. '-' .. index
local asked = redis.call('HGET', k_rollout(uid, 'session'), 'asked:' .. digest) or ''
-- Another call may have its number by now.
local known = string.find(' ' .. asked .. ' ', ' ' .. n .. ' ', 1, true)
local reply = known and redis.call('HGET', k_rollout(uid, 'replies'), n)
if reply then return { 'outcome', 'answered', 'reply', reply } end
if is_sampled(uid) or redis.call('EXISTS', k_batch(batch)) == 0 then return { 'outcome', 'over', 'reply', '' } end
if not known then return { 'outcome', 'forgotten', 'reply', '' } end
wake_session(batch, index)
return { 'outcome', 'waits', 'reply', '' }
