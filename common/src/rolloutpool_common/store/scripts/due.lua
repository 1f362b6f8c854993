-- Put a delayed rollout into its batch's outbox, if its time has come.
-- ARGV: batch, index.
-- Answer: 1 if it was put there, else 0.
local batch, index = ARGV[1], ARGV[2]
local uid = batch .. '-' .. index
local at = redis.call('ZSCORE', P .. 'delayed', uid)
if not at or tonumber(at) > now_ms() then return 0 end
redis.call('ZREM', P .. 'delayed', uid)
local priority = redis.call('HGET', k_batch(batch), 'priority')
if not priority or redis.call('HGET', k_rollout(uid), 'status') ~= 'queued' then return 0 end
to_outbox(batch, index, priority)
return 1
