-- Look at a rollout that has a polling lease; a look by the lease's holder renews it.
-- ARGV: key of the submit's idempotency record, sha256 of the token.
-- Answer: outcome. `unknown`: no such submit, or its data was deleted. `refused`: the token is another one. `ok`: with
-- `batch`, `status`, and `told`: the status that the look before has found.
local batch = redis.call('HGET', ARGV[1], 'batch')
if not batch then return { 'outcome', 'unknown' } end
local lease, told, deleting = unpack(redis.call('HMGET', k_batch(batch), 'polling_lease', 'told', 'deleting'))
if not lease or deleting then return { 'outcome', 'unknown' } end
if lease ~= ARGV[2] then return { 'outcome', 'refused' } end
renew_polled(batch)
local status, stage = unpack(redis.call('HMGET', k_rollout(batch .. '-0'), 'status', 'stage'))
status = stage or status or 'queued'
told = told or 'queued'
if status ~= told then redis.call('HSET', k_batch(batch), 'told', status) end
return { 'outcome', 'ok', 'batch', batch, 'status', status, 'told', told }
