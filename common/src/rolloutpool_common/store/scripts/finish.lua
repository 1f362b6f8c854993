-- End a rollout. ARGV: batch, index, claim token or '', status, result, then field, increment ... of the
-- batch hash. With a token: only by who holds the claim. Without: by the API or the reconciler, whoever runs it.
-- -> 'ok' | 'fenced' | 'gone' | the terminal status that it already has
local b, index, token = ARGV[1], ARGV[2], ARGV[3]
local uid = b .. '-' .. index
local total = redis.call('HGET', k_batch(b), 'total')
if not total or tonumber(index) >= tonumber(total) then return 'gone' end
local state = redis.call('HMGET', k_rollout(uid), 'status', 'token', 'worker')
if TERMINAL[state[1] or ''] then return state[1] end
if token ~= '' and state[2] ~= token then return 'fenced' end
if token == '' and state[1] == 'running' then redis.call('SADD', k_worker(state[3], 'stop'), state[2]) end
end_rollout(b, index, ARGV[4], ARGV[5], { unpack(ARGV, 6) })
return 'ok'
