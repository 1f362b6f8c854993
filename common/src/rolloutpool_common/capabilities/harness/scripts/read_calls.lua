-- Read a session as its worker needs it: the calls that it has not seen, and whether its owner has ended it.
-- ARGV: batch, index, calls that it has seen.
-- Answer: over ('' while it is not), calls (as they were stored), replies (of each of these calls, '' without one), said
-- (digest and JSON of what these calls were the first to say).
local uid = ARGV[1] .. '-' .. ARGV[2]
local seen = tonumber(ARGV[3])
local calls, replies, said = redis.call('LRANGE', k_rollout(uid, 'calls'), seen, -1), {}, {}
for i = 1, #calls do
  replies[i] = redis.call('HGET', k_rollout(uid, 'replies'), seen + i) or ''
  for digest in string.gmatch(string.match(calls[i], '^%d+ (%S*) '), '%x+') do
    said[#said + 1] = digest
    said[#said + 1] = redis.call('HGET', k_rollout(uid, 'said'), digest) or ''
  end
end
local over = redis.call('HGET', k_rollout(uid, 'session'), 'over') or ''
return { 'over', over, 'calls', calls, 'replies', replies, 'said', said }
