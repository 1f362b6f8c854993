-- End a rollout with its result.
-- ARGV: batch, index, token of the claim or '', status, its attachments or '', result, its row or '', then field, increment,
-- ... for the counters.
-- With a token, only the worker that holds the claim ends it. Without one, the API or the reconciler ends it, and the
-- worker that runs it is told to stop.
-- Answer: `ok`, `fenced` (the claim is lost), `gone` (no such rollout), or the terminal status that it already has; or that of
-- `other_capabilities`.
local batch = ARGV[1]
local others = other_capabilities(batch)
if others then return others end
local answer = finish(batch, ARGV[2], ARGV[3], ARGV[4], ARGV[6], ARGV[7], { unpack(ARGV, 8) })
if answer == 'ok' then
  local key, attached = k_rollout(batch .. '-' .. ARGV[2], 'attachments'), 0
  if ARGV[5] ~= '' then
    -- Those of a rollout that was kept for its grader are there already, and counted (grade.lua).
    attached = #ARGV[5] - redis.call('STRLEN', key)
    redis.call('SET', key, ARGV[5])
  end
  account_end(batch, ARGV[2], ARGV[4], attached + #ARGV[6] + #ARGV[7], #ARGV[6] + #ARGV[7])
  wake(batch)
end
return answer
