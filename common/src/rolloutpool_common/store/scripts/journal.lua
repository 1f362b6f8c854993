-- Append records to the journals of claimed rollouts, each fenced, checked and answered by itself: one that fails stops none
-- behind it. Those that a worker writes in one tick come together (store_call.py). Redis looks at its memory before the first.
-- ARGV: for each record: uid, token of the claim, index at which the record belongs, number of turns so far, what a capability
-- notes in the same step ('' mostly), record.
-- Answer: for each record {outcome, length (records in the journal now)}, or an error. `ok`: the record is there. `gap`: Redis
-- has lost the end of the journal, and the worker must send the records from `length` on. `fenced`: the claim is lost. Behind
-- `ok` a capability may answer its note.
local function append(uid, token, expected, turns, note, record)
  local holder_token, journaled, crashes, company, strikes, suspected, ends = unpack(redis.call(
    'HMGET', k_rollout(uid), 'token', 'journaled', 'crashes', 'company', 'strikes', 'suspected_ms', 'ends'
  ))
  if holder_token ~= token then return { 'fenced', -1 } end
  local length = redis.call('LLEN', k_rollout(uid, 'journal'))
  if length < expected then return { 'gap', length } end
  -- Longer than expected: this very record arrived before, and its answer was lost.
  if length == expected then
    -- `journaled` is for the reserve of its run (_usage.lua).
    redis.call('HSET', k_rollout(uid), 'turns', turns, 'uncalled', '', 'journaled', tonumber(journaled or '0') + #record)
    -- Progress: it got further than where its last workers died, so it was not the cause.
    if crashes or company or strikes or suspected or ends then clear(uid) end
    length = redis.call('RPUSH', k_rollout(uid, 'journal'), record)
  end
  local answer = { 'ok', length }
  if note ~= '' then
    -- @on_record(uid, note, answer)
  end
  return answer
end

local answers = {}
for i = 1, #ARGV, 6 do
  local fine, answer = pcall(append, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
  -- Redis 6.2 raises a text, and 7 a table.
  if not fine and type(answer) ~= 'table' then answer = { err = answer } end
  answers[#answers + 1] = answer
end
return answers
