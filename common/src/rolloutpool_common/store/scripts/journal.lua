-- Append one record to the journal of a claimed rollout. ARGV: uid, claim token, expected index, turns, record.
-- -> {'ok' | 'gap' | 'fenced', length}; `gap`: Redis lost the tail, the worker resends what is missing
local uid, token, expected = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', k_rollout(uid), 'token') ~= token then return { 'fenced', -1 } end
local length = redis.call('LLEN', k_rollout(uid, 'journal'))
if length < expected then return { 'gap', length } end
-- Longer than expected: this very record arrived before and its answer was lost.
if length > expected then return { 'ok', length } end
redis.call('HSET', k_rollout(uid), 'turns', ARGV[4])
-- It got further than where its last workers died, so it was not what killed them.
redis.call('HDEL', k_rollout(uid), 'crashes')
return { 'ok', redis.call('RPUSH', k_rollout(uid, 'journal'), ARGV[5]) }
