-- Read which tokenizers the rollouts of a batch need.
-- ARGV: batch.
-- Answer: JSON, a list of [name, revision]; '' where the batch is unknown or does not say it.
return redis.call('HGET', k_batch(ARGV[1]), 'tokenizers') or ''
