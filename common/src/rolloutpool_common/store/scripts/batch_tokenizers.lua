-- Read which tokenizers the rollouts of a batch need, whose it is, and what they share.
-- ARGV: batch.
-- Answer: {JSON, a list of [name, revision]; owner; JSON, the shared fields}, each '' where the batch is unknown or does not say
-- it. The fields are '' as well where a note stays a write of its own (model_calls.py): v1, runs, recorded turns.
local tokenizers, owner, shared, v1, run = unpack(redis.call(
  'HMGET', k_batch(ARGV[1]), 'tokenizers', 'owner', 'shared', 'v1', 'run'
))
local is_plain = not v1 and run == ARGV[1] and redis.call('EXISTS', k_batch(ARGV[1], 'trunk')) == 0
return { tokenizers or '', owner or '', is_plain and shared or '' }
