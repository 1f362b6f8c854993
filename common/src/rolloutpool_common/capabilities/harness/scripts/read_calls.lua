-- Read a session as its worker needs it: the calls that it has not seen, and whether its owner has ended it.
-- ARGV: batch, index, calls that it has seen.
-- Answer: over ('' while it is not), calls (as they were stored), replies (of each of these calls, '' without one).
local uid = ARGV[1] .. '-' .. ARGV[2]
local seen = tonumber(ARGV[3])
local calls, replies = redis.call('LRANGE', k_rollout(uid, 'calls'), seen, -1), {}
for i = 1, #calls do replies[i] = redis.call('HGET', k_rollout(uid, 'replies'), seen + i) or '' end
return { 'over', redis.call('HGET', k_rollout(uid, 'session'), 'over') or '', 'calls', calls, 'replies', replies }
