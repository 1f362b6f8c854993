-- Look at a rollout that has a polling lease; a look by the lease's holder renews it.
-- ARGV: key of the submit's idempotency record, sha256 of the token.
-- Answer: outcome. `unknown`: no such submit, or its data was deleted. `refused`: the token is another one. `ok`: with
-- `batch`, `status`, and `told`: the status that the look before has found.
-- A lease that is over is renewed as well, while its rollout has not been ended: the API may have been down, so that
-- nobody could look.
local batch = redis.call('HGET', ARGV[1], 'batch')
if not batch then return { 'outcome', 'unknown' } end
local lease, lease_ms, told = unpack(redis.call('HMGET', k_batch(batch), 'polling_lease', 'polling_ms', 'told'))
if not lease then return { 'outcome', 'unknown' } end
if lease ~= ARGV[2] then return { 'outcome', 'refused' } end
local uid = batch .. '-0'
local status = redis.call('HGET', k_rollout(uid), 'status') or 'queued'
if not TERMINAL[status] then redis.call('ZADD', P .. 'polling_leases', str(now_ms() + tonumber(lease_ms)), uid) end
told = told or 'queued'
if status ~= told then redis.call('HSET', k_batch(batch), 'told', status) end
return { 'outcome', 'ok', 'batch', batch, 'status', status, 'told', told }
