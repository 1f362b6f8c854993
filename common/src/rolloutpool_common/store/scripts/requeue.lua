-- Put a rollout that stands in another list back into its batch's outbox: a delayed one whose time has come, or one whose
-- published ticket the broker has lost.
-- ARGV: batch, index, key of the list, its score there when the caller looked, the total that counts it or ''.
-- Answer: 1 if it was put there; 0: it was claimed, ended, delayed or published again in the meantime.
local batch, index, list, total = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local uid = batch .. '-' .. index
local score = redis.call('ZSCORE', list, uid)
-- Another score means another delay or ticket: it went back and came again, so it is not the one that the caller saw.
if not score or tonumber(score) ~= tonumber(ARGV[4]) then return 0 end
redis.call('ZREM', list, uid)
local priority = redis.call('HGET', k_batch(batch), 'priority')
-- One that was never claimed has no status. It is delayed where its ticket met a worker that was declared dead (claim.lua).
local status = redis.call('HGET', k_rollout(uid), 'status') or 'queued'
if not priority or status ~= 'queued' then return 0 end
to_outbox(batch, index, priority)
if total ~= '' then count(total) end
return 1
