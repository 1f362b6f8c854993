-- Put a published ticket that the broker has lost back into its outbox.
-- ARGV: batch, index, priority, ms when it was published.
-- Answer: 1, or 0: it was claimed, ended or published again in the meantime.
local batch, index, priority = ARGV[1], ARGV[2], ARGV[3]
local uid = batch .. '-' .. index
local published_ms = redis.call('ZSCORE', k_published(priority), uid)
-- Another time means another ticket: it went back and was published again, so it is not the lost one.
if not published_ms or tonumber(published_ms) ~= tonumber(ARGV[4]) then return 0 end
redis.call('ZREM', k_published(priority), uid)
if redis.call('EXISTS', k_batch(batch)) == 0 then return 0 end
to_outbox(batch, index, priority)
count('republished')
return 1
