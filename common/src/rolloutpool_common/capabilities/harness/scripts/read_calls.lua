-- Read a session as its worker needs it: the calls that it has not seen, and whether its owner has ended it.
-- ARGV: batch, index, calls that it has seen, the last of these ('' before the first; JSON).
-- Answer: forgotten (1: Redis has lost that one with its last second, and may have another in its place; else 0), over (''
-- while it is not), calls (as they were stored), replies (of each of these calls, '' without one), said (digest and JSON of
-- what these calls were the first to say).
local uid = ARGV[1] .. '-' .. ARGV[2]
local seen, last = tonumber(ARGV[3]), ARGV[4]
local found = redis.call('LINDEX', k_rollout(uid, 'calls'), seen - 1)
local calls, replies, said = redis.call('LRANGE', k_rollout(uid, 'calls'), seen, -1), {}, {}
for i = 1, #calls do
  replies[i] = redis.call('HGET', k_rollout(uid, 'replies'), seen + i) or ''
  for digest in string.gmatch(string.match(calls[i], '^%d+ (%S*) '), '%x+') do
    said[#said + 1] = digest
    said[#said + 1] = redis.call('HGET', k_rollout(uid, 'said'), digest) or ''
  end
end
local over = redis.call('HGET', k_rollout(uid, 'session'), 'over') or ''
local forgotten = seen > 0 and not is_sampled(uid) and string.match(found or '', '^%d+ %S* (.*)$') ~= last
return { 'forgotten', forgotten and 1 or 0, 'over', over, 'calls', calls, 'replies', replies, 'said', said }
