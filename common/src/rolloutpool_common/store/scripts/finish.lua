-- End a rollout with its result.
-- ARGV: batch, index, token of the claim or '', status, result, then field, increment, ... for the counters.
-- With a token, only the worker that holds the claim ends it. Without one, the API or the reconciler ends it, and the
-- worker that runs it is told to stop.
-- Answer: `ok`, `fenced` (the claim is lost), `gone` (no such rollout), or the terminal status that it already has.
local batch, index, token, new_status, result = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local uid = batch .. '-' .. index
local total = redis.call('HGET', k_batch(batch), 'total')
if not total or tonumber(index) >= tonumber(total) then return 'gone' end
local status, holder_token, worker = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'token', 'worker'))
if TERMINAL[status or ''] then return status end
if token ~= '' and holder_token ~= token then return 'fenced' end
if token == '' and status == 'running' then redis.call('SADD', k_worker(worker, 'stop'), holder_token) end
end_rollout(batch, index, new_status, result, { unpack(ARGV, 6) })
return 'ok'
