-- Append one record to the journal of a claimed rollout.
-- ARGV: uid, token of the claim, index at which the record belongs, number of turns so far, record.
-- Answer: outcome, length (records in the journal now). `ok`: the record is there. `gap`: Redis has lost the end of the
-- journal, and the worker must send the records from `length` on. `fenced`: the claim is lost.
local uid, token, expected = ARGV[1], ARGV[2], tonumber(ARGV[3])
local holder_token, journaled, crashes, company, strikes, suspected, ends = unpack(redis.call(
  'HMGET', k_rollout(uid), 'token', 'journaled', 'crashes', 'company', 'strikes', 'suspected_ms', 'ends'
))
if holder_token ~= token then return { 'outcome', 'fenced', 'length', -1 } end
local length = redis.call('LLEN', k_rollout(uid, 'journal'))
if length < expected then return { 'outcome', 'gap', 'length', length } end
-- Longer than expected: this very record arrived before, and its answer was lost.
if length > expected then return { 'outcome', 'ok', 'length', length } end
-- `journaled` is for the reserve of its run (_usage.lua).
redis.call('HSET', k_rollout(uid), 'turns', ARGV[4], 'uncalled', '', 'journaled', tonumber(journaled or '0') + #ARGV[5])
-- Progress: it got further than where its last workers died, so it was not the cause.
if crashes or company or strikes or suspected or ends then clear(uid) end
return { 'outcome', 'ok', 'length', redis.call('RPUSH', k_rollout(uid, 'journal'), ARGV[5]) }
