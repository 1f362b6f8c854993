-- Read which tokenizers the rollouts of a batch need, and whose it is.
-- ARGV: batch.
-- Answer: {JSON, a list of [name, revision]; owner}, each '' where the batch is unknown or does not say it.
local tokenizers, owner = unpack(redis.call('HMGET', k_batch(ARGV[1]), 'tokenizers', 'owner'))
return { tokenizers or '', owner or '' }
