-- Put a delayed rollout into its outbox, if its time has come. ARGV: batch, index. -> 1 | 0
local b, index = ARGV[1], ARGV[2]
local uid = b .. '-' .. index
local at = redis.call('ZSCORE', P .. 'delayed', uid)
if not at or tonumber(at) > now_ms() then return 0 end
redis.call('ZREM', P .. 'delayed', uid)
local priority = redis.call('HGET', k_batch(b), 'priority')
if not priority or redis.call('HGET', k_rollout(uid), 'status') ~= 'queued' then return 0 end
to_outbox(b, index, priority)
return 1
