-- Take a running rollout from its worker and queue it again; its journal stays.
-- ARGV: batch, index, token, worker, counter, clean, ms until it may run again, role of its worker ('' by the reconciler),
-- then why in words ('' or absent where it is not known; for its history), and how many calls of its turn had failed in a
-- row when a drain ended the attempt (0 or absent without a drain). The next claim takes that number, so that drains do not
-- renew what a turn may cost.
-- By the worker that holds the claim (drain, retry, deferral): with `token`, `worker` is ''. By the reconciler (the worker
-- died): with `worker`, and only if that worker still has it; `token` is ''.
-- `counter` is `retries`, `deferrals`, `capacity`, `grade_retries`, `losses`, `stale` (it begins again with newer weights, and its journal is
-- gone already), `pauses` (its run is paused), `weights` (its engine's are too old), `crashes`, `deaths`, or '' for a drain. `crashes` and `deaths` are deaths of a
-- worker: `crashes` where a rollout may be the cause, which counts as both; `deaths` where the cause is known and came from
-- outside, which only counts towards the limit of a rollout's whole life. `clean` is 0 where a model call may be
-- unanswered, else 1. Who says 0 without having seen the attempt (the reconciler, and `losses`) does not know it: where no
-- call was noted under this claim (calling.lua), what earlier attempts left is true instead. But Redis may have lost the
-- note with its last second, so a claim of an earlier epoch is not believed.
-- Answer: the counter's new value; for `crashes` and `deaths` the number of workers that it is suspected of having killed;
-- 0 without a counter; -1 where the rollout is no longer that worker's.
--
-- A crash of an isolated worker. `company`, which only suspects have, says how many could be tried with it.
-- 1. In company: those that were not cleared share the suspicion. Each may be tried with half as many next time.
-- 2. Without: this counts as a strike. Two are proof enough (MAX_CRASHES); one may be chance.
local batch, index, token, worker, counter, clean = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local delay_ms, role = tonumber(ARGV[7]), ARGV[8]
local uid = batch .. '-' .. index
local status, holder_token, holder, uncalled, was_clean, attempt, claimed, turns = unpack(redis.call(
  'HMGET', k_rollout(uid), 'status', 'token', 'worker', 'uncalled', 'clean', 'attempt', 'claimed', 'turns'
))
if status ~= 'running' or (token ~= '' and holder_token ~= token) or (worker ~= '' and holder ~= worker) then
  -- A dead worker's list may name what it no longer has. While it names anything, deregister.lua keeps the worker.
  if worker ~= '' then redis.call('SREM', k_worker(worker, 'claims'), uid) end
  return -1
end

-- How many of the dead worker's suspects were not cleared; counted with the first of them that is taken from it.
local function uncleared()
  local key = k_worker(worker)
  if redis.call('HEXISTS', key, 'uncleared') == 0 then
    local n = 0
    for _, held in ipairs(redis.call('SMEMBERS', k_worker(worker, 'claims'))) do
      n = n + redis.call('HEXISTS', k_rollout(held), 'company')
    end
    redis.call('HSET', key, 'uncleared', n)
  end
  return tonumber(redis.call('HGET', key, 'uncleared'))
end

local counted = counter == '' and 0 or redis.call('HINCRBY', k_rollout(uid), counter, 1)
if counter == 'crashes' then
  local company = tonumber(redis.call('HGET', k_rollout(uid), 'company') or '0')
  if company > 1 then
    redis.call('HSET', k_rollout(uid), 'company', math.max(1, math.ceil(uncleared() / 2)))
  else
    -- Not in company: there it would also count against the many that are innocent.
    redis.call('HINCRBY', k_rollout(uid), 'deaths', 1)
  end
  if company == 1 then
    redis.call('HINCRBY', k_rollout(uid), 'strikes', 1)
    -- For the failure (poison.py). A parent that saw the end has reported it; the report is kept until all is taken back.
    local ends = redis.call('HGET', k_rollout(uid), 'ends')
    local ended = redis.call('HGET', P .. 'obituaries', worker) or 'unknown'
    redis.call('HSET', k_rollout(uid), 'ends', (ends and ends .. ' ' or '') .. ended)
  end
elseif role == 'isolated' and counter ~= '' and counter ~= 'pauses' and counter ~= 'weights' then
  -- A suspect that failed in an isolated worker without killing it.
  clear(uid)
end
local priority = redis.call('HGET', k_batch(batch), 'priority')
if uncalled == epoch() and (worker ~= '' or counter == 'losses') then clean = was_clean or '1' end
redis.call('HSET', k_rollout(uid), 'status', 'queued', 'clean', clean)
local why, tried = ARGV[9], tonumber(ARGV[10] or '0')
-- Not taken out by the claim, whose answer may be lost: then it comes again, and has to be answered likewise.
if tried > 0 then redis.call('HSET', k_rollout(uid), 'tried', tried) else redis.call('HDEL', k_rollout(uid), 'tried') end
local detail = (why and why ~= '' and why) or (worker ~= '' and redis.call('HGET', P .. 'obituaries', worker))
redis.call('RPUSH', k_rollout(uid, 'history'), cjson.encode({
  attempt = tonumber(attempt), worker = holder, claimed_ms = tonumber(claimed), ended_ms = now_ms(), delay_ms = delay_ms,
  turns = tonumber(turns or '0'), reason = counter ~= '' and counter or 'drains', detail = detail or nil,
}))
redis.call('LTRIM', k_rollout(uid, 'history'), -50, -1)
-- If the worker lives after all, its next beat tells it to stop.
if token == '' then redis.call('SADD', k_worker(holder, 'stop'), holder_token) end
redis.call('HDEL', k_rollout(uid), 'token', 'worker', 'uncalled')
count_claimed(batch, uid, -1)
detach(uid, holder, priority)
local suspected = suspicion(unpack(redis.call('HMGET', k_rollout(uid), 'crashes', 'strikes', 'deaths')))
if delay_ms > 0 then
  redis.call('ZADD', P .. 'delayed', str(now_ms() + delay_ms), uid)
elseif suspected >= 2 then
  to_suspects(uid)
else
  to_outbox(batch, index, priority)
end
-- @on_release(batch, counter, index)
count('requeued:' .. (counter ~= '' and counter or 'drains'))
return (counter == 'crashes' or counter == 'deaths') and suspected or counted
