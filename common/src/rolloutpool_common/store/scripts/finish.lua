-- End a rollout with its result.
-- ARGV: batch, index, token of the claim or '', status, its attachments or '', result, its row or '', sha256 of the tokenizer
-- that made its ids or '', then field, increment, ... for the counters.
-- With a token, only the worker that holds the claim ends it. Without one, the API or the reconciler ends it, and the
-- worker that runs it is told to stop.
-- Answer: `ok`, `fenced` (the claim is lost), `gone` (no such rollout), or the terminal status that it already has; or that of
-- `other_capabilities`.
local batch, sha = ARGV[1], ARGV[8]
local others = other_capabilities(batch)
if others then return others end
local answer = finish(batch, ARGV[2], ARGV[3], ARGV[4], ARGV[6], ARGV[7], { unpack(ARGV, 9) })
if answer == 'ok' then
  -- Those of a rollout that was kept for its grader are there already (grade.lua).
  if ARGV[5] ~= '' then redis.call('SET', k_rollout(batch .. '-' .. ARGV[2], 'attachments'), ARGV[5]) end
  account_end(batch, ARGV[2], ARGV[4], #ARGV[5] + #ARGV[6] + #ARGV[7], #ARGV[6] + #ARGV[7])
  -- Its owner may read the tokenizer's vocabulary from now on (pieces.py). Noted once per batch.
  if sha ~= '' and redis.call('HSETNX', k_batch(batch), 'made_with:' .. sha, 1) == 1 then
    local owner = redis.call('HGET', k_batch(batch), 'owner')
    redis.call('SADD', k_made_with(sha), owner)
    redis.call('SADD', k_made_with(sha, owner), batch)
    redis.call('PERSIST', k_pieces(sha))
  end
  wake(batch)
end
return answer
