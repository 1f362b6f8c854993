-- Add annotations to a batch, once per request.
-- ARGV: batch, id of the request, most bytes that the batch's annotations may take, scalars (a record, or ''), then index,
-- streams (a record) of each rollout that has some.
-- Answer: outcome, bytes (that they take now). `ok`; `full`: nothing was added; `gone`: no such batch any more.
local batch, request, most, scalars = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local total, used, deleting = unpack(redis.call('HMGET', k_batch(batch), 'total', 'annotation_bytes', 'deleting'))
-- While a batch is deleted, its rollouts' keys go first, and what is added to them would stay for ever.
if not total or deleting then return { 'outcome', 'gone', 'bytes', 0 } end
used = tonumber(used or '0')
-- The same request again: it was carried out before, and its answer was lost.
if redis.call('SISMEMBER', k_batch(batch, 'annotated'), request) == 1 then return { 'outcome', 'ok', 'bytes', used } end
-- What Redis keeps beside the records: an element of the set, and an element of a list for each record.
local added = #request + 64 + #scalars
for i = 6, #ARGV, 2 do added = added + #ARGV[i] + 64 end
if used + added > most then return { 'outcome', 'full', 'bytes', used } end
if scalars ~= '' then redis.call('RPUSH', k_batch(batch, 'scalars'), scalars) end
for i = 5, #ARGV, 2 do redis.call('RPUSH', k_rollout(batch .. '-' .. ARGV[i], 'streams'), ARGV[i + 1]) end
redis.call('SADD', k_batch(batch, 'annotated'), request)
hold_bytes(batch, added)
return { 'outcome', 'ok', 'bytes', redis.call('HINCRBY', k_batch(batch), 'annotation_bytes', added) }
