-- Put a published ticket that the broker no longer has back into its outbox. ARGV: batch, index, priority, its ms.
-- -> 1 | 0 when it was claimed, ended or published again in between
local b, index, priority = ARGV[1], ARGV[2], ARGV[3]
local score = redis.call('ZSCORE', k_published(priority), b .. '-' .. index)
if not score or tonumber(score) ~= tonumber(ARGV[4]) then return 0 end
redis.call('ZREM', k_published(priority), b .. '-' .. index)
if redis.call('EXISTS', k_batch(b)) == 0 then return 0 end
to_outbox(b, index, priority)
count('republished')
return 1
