-- Give a rollout to a worker, if it may have it.
-- ARGV: batch, index, worker, role of the worker (shared | isolated), token of the claim, URL of the trainer that the worker
-- asks at once where the rollout has no fields of its own that change this ('' or absent: something stands between).
-- Answer: that of `other_capabilities`, or: outcome, which is `claimed` or why not (store.records.ClaimRefused). With `claimed`
-- also: attempt (from 1), journal_length, crashes (since its last progress), retries, deferrals, clean (1, or 0: a model call of
-- the last attempt may be unanswered), stage (in which a capability has it, '' without one), notes (what capabilities say, by
-- name), group ('' without one), deadline_ms ('' without one), now_ms, created_ms (of the batch), shared and overrides (JSON,
-- which make its spec), priority, more_waiting (1: an outbox of its priority class may have something to publish),
-- attachment_bytes (that it may attach), tried (calls of its present turn that failed before a drain), called (1: its first model
-- call is noted with this claim, as calling.lua does it, else 0).
local batch, index, worker, role, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local uid = batch .. '-' .. index
local others = other_capabilities(batch)
if others then return others end
local about = redis.call(
  'HMGET', k_batch(batch), 'priority', 'created_ms', 'shared', 'cancelled_ms', 'run', 'attachment_bytes', 'needs',
  'other_needs', 'deleting'
)
local priority, created_ms, shared, cancelled_ms, run, attachment_bytes = unpack(about, 1, 6)
local overrides = redis.call('HGET', k_batch(batch, 'items'), index)
-- While a batch is deleted, what says that its rollouts have ended goes before the rest: a late ticket's would look fresh.
if not priority or not overrides or about[9] then return { 'outcome', 'gone' } end
-- The rollouts of a cancelled batch are ended some at a time. None of them may start meanwhile.
if cancelled_ms then return { 'outcome', 'ended' } end
local known = redis.call(
  'HMGET', k_rollout(uid), 'status', 'attempt', 'crashes', 'token', 'clean', 'retries', 'deferrals', 'strikes', 'deaths',
  'stage', 'leads', 'held', 'tried', 'uncalled'
)
local status, attempts, crashes, holder_token, clean, retries, deferrals, strikes, deaths = unpack(known, 1, 9)
local stage, leads, held, tried, uncalled = unpack(known, 10, 14)
if TERMINAL[status or ''] or redis.call('SISMEMBER', P .. 'precancelled', uid) == 1 then return { 'outcome', 'ended' } end
-- The same token stands in Redis: this very claim was made before, and its answer was lost.
local again = status == 'running' and holder_token == token
-- The ticket has arrived, so it is not lost. If another worker has the rollout, this ticket was a second one; giving the
-- rollout back makes a new one.
local was_published = redis.call('ZREM', k_published(priority), uid) == 1
if status == 'running' and not again then return { 'outcome', 'taken' } end
-- It waits for others in its stage, and needs no worker until it leads them.
if held and not leads then return { 'outcome', 'taken' } end
-- This worker was declared dead. Until it has noticed that and announced itself again, what it claimed could not be told
-- from what it had before. The rollout is queued again in a second.
if not again and redis.call('ZSCORE', P .. 'condemned', worker) then
  if not redis.call('ZSCORE', P .. 'suspects', uid) then redis.call('ZADD', P .. 'delayed', 'NX', str(now_ms() + 1000), uid) end
  return { 'outcome', 'condemned' }
end
local now = now_ms()
local deadline_ms = redis.call('HGET', k_batch(batch, 'deadlines'), index) or ''
-- A stage has a deadline of its own, and its worker ends it.
if not stage and deadline_ms ~= '' and tonumber(deadline_ms) <= now then return { 'outcome', 'expired' } end
local is_suspect = suspicion(crashes, strikes, deaths) >= 2
-- This worker lacks something that the rollout names: it has started since the ticket was published, or an older release has
-- published it. The rollout waits for a worker that is suited. One whose ticket was not published waits elsewhere already.
local needs = needs_of(batch, index, about[7], about[8])
if not again and not is_suited(worker, needs) then
  if role ~= 'isolated' then
    -- From now on reserve.lua knows that not every worker is suited, and does not choose this one again.
    local offer = redis.call('HGET', k_worker(worker), 'offer')
    redis.call('HSETNX', P .. 'offers', string.sub(offer, 1, 32), '1 1 ' .. offer)
  end
  if is_suspect then
    to_suspects(uid)
  elseif was_published then
    to_lane(batch, index, priority, needs, attempts)
  end
  return { 'outcome', 'unsuited' }
end
if is_suspect then
  -- Its ticket is older than the suspicion, or its deferral is over. It waits among the suspects, and needs no ticket.
  if role ~= 'isolated' then
    to_suspects(uid)
    return { 'outcome', 'taken' }
  end
  -- Claimed by itself and not as part of a cohort (trial.lua): this is a trial without company.
  if not again then redis.call('HSET', k_rollout(uid), 'company', 1) end
end
-- Its run was paused while the ticket was on its way. A slot that it held meanwhile would be of use to others.
if not again and role ~= 'isolated' and is_paused(batch, run) then
  if not redis.call('ZSCORE', P .. 'delayed', uid) then to_outbox(batch, index, priority) end
  return { 'outcome', 'paused' }
end
-- A second ticket may come while it is delayed.
redis.call('ZREM', P .. 'delayed', uid)
-- Whether the first call is noted now. Every death until the call then leaves a turn in doubt, so only a first attempt's is, whose
-- turn may be asked twice by the promise that is noted with the batch. A text that names a field in vain only costs a write.
local function calls_at_once()
  local trainer = ARGV[6] or ''
  if trainer == '' or attempts or stage or is_suspect or run ~= batch then return false end
  for _, name in ipairs({ '"server_url"', '"environment"', '"agent"', '"protocol"', '"messages_only"', '"tokenizer_' }) do
    if string.find(overrides, name, 1, true) then return false end
  end
  return redis.call('SISMEMBER', k_batch(batch, 'idempotent'), trainer) == 1
end

local attempt = tonumber(attempts or '0')
local called = again and uncalled == ''
if not again then
  called = calls_at_once()
  attempt = attempt + 1
  count_claimed(batch, uid, 1)
  hold(uid, attempt, token, worker, called and '' or epoch())
end
local notes = {}
-- @on_claim(notes, uid, now, batch)
return {
  'outcome', 'claimed',
  'attempt', attempt,
  'journal_length', redis.call('LLEN', k_rollout(uid, 'journal')),
  'crashes', tonumber(crashes or '0'),
  'retries', tonumber(retries or '0'),
  'deferrals', tonumber(deferrals or '0'),
  'clean', tonumber(clean or '1'),
  'stage', stage or '',
  'notes', notes,
  'group', redis.call('HGET', k_batch(batch, 'groups'), index) or '',
  'deadline_ms', deadline_ms,
  'now_ms', str(now),
  'created_ms', created_ms,
  'shared', shared,
  'overrides', overrides,
  'priority', priority,
  'more_waiting', (redis.call('EXISTS', k_runs(priority)) == 1 or needs and redis.call('EXISTS', k_lanes(priority)) == 1) and 1 or 0,
  'attachment_bytes', tonumber(attachment_bytes or '0'),
  'tried', tonumber(tried or '0'),
  'called', called and 1 or 0,
}
