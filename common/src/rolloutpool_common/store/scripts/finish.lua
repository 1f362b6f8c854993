-- End a rollout with its result.
-- ARGV: batch, index, token of the claim or '', status, result, its row or '', then field, increment, ... for the counters.
-- With a token, only the worker that holds the claim ends it. Without one, the API or the reconciler ends it, and the
-- worker that runs it is told to stop.
-- Answer: `ok`, `fenced` (the claim is lost), `gone` (no such rollout), or the terminal status that it already has.
local answer = finish(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], { unpack(ARGV, 7) })
if answer == 'ok' then wake(ARGV[1]) end
return answer
