-- Put a delayed rollout into its batch's outbox, if its time has come.
-- ARGV: batch, index.
-- Answer: 1 if it was put there, else 0.
local batch, index = ARGV[1], ARGV[2]
local uid = batch .. '-' .. index
local at = redis.call('ZSCORE', P .. 'delayed', uid)
if not at or tonumber(at) > now_ms() then return 0 end
redis.call('ZREM', P .. 'delayed', uid)
local priority = redis.call('HGET', k_batch(batch), 'priority')
-- One that was never claimed has no status. It is delayed where its ticket met a worker that was declared dead (claim.lua).
local status = redis.call('HGET', k_rollout(uid), 'status') or 'queued'
if not priority or status ~= 'queued' then return 0 end
to_outbox(batch, index, priority)
return 1
