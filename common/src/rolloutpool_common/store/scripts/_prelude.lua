-- Put in front of every script: key names (the twin of keys.py), the clock, and the steps that several scripts share.
--
-- A script runs alone in Redis, so what it reads stays true until it has written. Every script may arrive twice, because
-- a call whose answer was lost is repeated; the second arrival must change nothing.
-- A script with several answers returns one flat list {name, value, name, value, ...}; `answers.named` reads it.
-- Times are milliseconds since 1970 on Redis' own clock. Keys are not declared, because Redis Cluster is not supported.
local P = 'rp:'
local function k_batch(batch, part) return part and (P .. 'batch:' .. batch .. ':' .. part) or (P .. 'batch:' .. batch) end
local function k_rollout(uid, part) return part and (P .. 'rollout:' .. uid .. ':' .. part) or (P .. 'rollout:' .. uid) end
local function k_worker(worker, part)
  return part and (P .. 'worker:' .. worker .. ':' .. part) or (P .. 'worker:' .. worker)
end
local function k_runs(priority) return P .. 'runs:' .. priority end
local function k_run(priority, run) return P .. 'run:' .. priority .. ':' .. run end
local function k_turn(priority) return P .. 'turn:' .. priority end
local function k_name(owner, name) return P .. 'name:' .. owner .. ':' .. name end
-- The lists of batches: everybody's, or one owner's. Rollouts of protocol v1 have lists of their own.
local function k_batches(v1, owner)
  local list = v1 and (P .. 'batches_v1') or (P .. 'batches')
  return owner and (list .. ':' .. owner) or list
end
-- The vocabulary of a tokenizer, and whose kept rollouts it made: owners, or one owner's batches (pieces.py).
local function k_pieces(sha) return P .. 'pieces:' .. sha end
local function k_made_with(sha, owner)
  return owner and (P .. 'made_with:' .. sha .. ':' .. owner) or (P .. 'made_with:' .. sha)
end
local function k_polled(owner) return P .. 'polled:' .. owner end
local function k_published(priority) return P .. 'published:' .. priority end
-- Where the rollouts of a batch wait that belong to a lane: a priority class, or a part of one (_lanes.lua).
local function k_outbox(batch, lane) return k_batch(batch, 'outbox' .. (string.match(lane, '~.*') or '')) end
-- What is known of a run, by '{owner}/{name}'. A batch without a run has its own id there, and no such state.
local function k_steering(run) return P .. 'steering:' .. run end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A whole number as text: Lua would write large ones as 1e+15.
local function str(n) return string.format('%.0f', n) end

-- Add to the pool's totals (totals.py), which only grow.
local function count(name, n) redis.call('HINCRBY', P .. 'totals', name, n or 1) end

local TERMINAL = { completed = true, failed = true, cancelled = true, expired = true }

-- How many workers this rollout is suspected of having killed: from 2 on it is a suspect, from 4 on it is poison. `crashes`:
-- workers that died with it since its last progress; at most two of them count, because others ran there as well.
-- `strikes`: trials without company in which its worker died. `deaths`: all that ever died with it; this number catches a
-- rollout that makes a little progress before each crash.
local function suspicion(crashes, strikes, deaths)
  return math.max(
    math.min(tonumber(crashes or '0'), 2) + tonumber(strikes or '0'), tonumber(deaths or '0') - 8
  )
end

-- Let a suspect wait for an isolated worker (trial.lua). It is in no outbox meanwhile, because no ticket may bring it to a
-- shared worker. Its place in the list is by the time of its first suspicion, also when it comes back from a trial.
local function to_suspects(uid)
  redis.call('HSETNX', k_rollout(uid), 'suspected_ms', str(now_ms()))
  redis.call('ZREM', P .. 'delayed', uid)
  redis.call('ZADD', P .. 'suspects', redis.call('HGET', k_rollout(uid), 'suspected_ms'), uid)
end

-- Clear a suspect: it made progress, or it failed in an isolated worker without killing it.
local function clear(uid) redis.call('HDEL', k_rollout(uid), 'crashes', 'company', 'strikes', 'suspected_ms', 'ends') end

-- Whether a rollout's turn may be asked again although it may have been answered: RolloutSpec.may_repeat, or its trainer
-- has promised in this batch that this is safe (model_calls.py).
local function may_repeat(batch, index)
  local chosen, promised = {}, redis.call('EXISTS', k_batch(batch, 'idempotent')) == 1
  -- Its own fields replace the batch's. Most texts name none of the options, and need not be parsed.
  for _, text in ipairs({
    redis.call('HGET', k_batch(batch), 'shared') or '', redis.call('HGET', k_batch(batch, 'items'), index) or ''
  }) do
    local names_option = string.find(text, '"idempotent"', 1, true) or string.find(text, '"on_ambiguous_turn"', 1, true)
      or string.find(text, '"protocol"', 1, true)
    if text ~= '' and (promised or names_option) then
      local parsed, fields = pcall(cjson.decode, text)
      if not parsed then return false end
      for _, name in ipairs({ 'idempotent', 'on_ambiguous_turn', 'protocol', 'server_url' }) do
        if fields[name] ~= nil then chosen[name] = fields[name] end
      end
    end
  end
  if chosen.idempotent == true or chosen.on_ambiguous_turn == 'retry' then return true end
  -- An engine keeps nothing of a turn.
  if (chosen.protocol or 'callback') ~= 'callback' then return true end
  return promised and redis.call('SISMEMBER', k_batch(batch, 'idempotent'), chosen.server_url or '') == 1
end

-- Among how many, itself included, a suspect may be tried. Decided once, when it is first looked at: the suspects are
-- divided evenly over the workers that can try them, but at most `most` are tried together. One whose turn must not be
-- asked again is tried alone, because a neighbour that kills their worker would leave its turn in doubt. So is one that is
-- suspected for all that ever died with it.
local function company_of(uid, most)
  local crashes, company = unpack(redis.call('HMGET', k_rollout(uid), 'crashes', 'company'))
  if suspicion(crashes, 0, 0) < 2 then return 1 end
  if company then return tonumber(company) end
  local batch, index = string.match(uid, '^(.*)%-(%d+)$')
  company = 1
  if may_repeat(batch, index) then
    local places = math.max(redis.call('ZCARD', P .. 'workers') - redis.call('SCARD', P .. 'isolated'), 1)
    company = math.max(1, math.min(most, math.ceil(redis.call('ZCARD', P .. 'suspects') / places)))
  end
  redis.call('HSET', k_rollout(uid), 'company', company)
  return company
end

-- Remove a rollout from its worker's claims and from the published tickets.
local function detach(uid, worker, priority)
  if worker and worker ~= '' then
    redis.call('SREM', k_worker(worker, 'claims'), uid)
  end
  redis.call('ZREM', k_published(priority), uid)
end

-- The number of Redis' current start (epoch.lua).
local function epoch() return redis.call('HGET', P .. 'epoch', 'number') or '0' end

-- Give the claim on a rollout to a worker. `uncalled` is the epoch of a claim under which no model call was sent, else ''.
local function hold(uid, attempt, token, worker, uncalled)
  local now = str(now_ms())
  redis.call(
    'HSET', k_rollout(uid), 'status', 'running', 'attempt', attempt, 'token', token, 'worker', worker, 'claimed', now,
    'uncalled', uncalled
  )
  redis.call('SADD', k_worker(worker, 'claims'), uid)
  redis.call('ZREM', P .. 'suspects', uid)
  -- A worker that Redis has forgotten (a restart, or it was declared dead) may restore its claim before its next beat. It
  -- is put back among the workers, so that its claims are found if it dies.
  redis.call('ZADD', P .. 'workers', 'NX', now, worker)
end

-- Whether a run is paused: nothing of it is published, and no model call of it is sent.
local function is_paused(run) return redis.call('HEXISTS', k_steering(run), 'paused_ms') == 1 end

-- Milliseconds for which the pool was there for its callers (tick.lua). Leases and pauses end by this clock.
local function served_ms() return tonumber(redis.call('HGET', P .. 'served', 'clock_ms') or '0') end

-- Keep what is known of a run for another week, or as long as it is paused. Answer: false where too many runs are known and
-- this one is not among them.
local function keep_run(run)
  local now, week, most, key = now_ms(), 7 * 86400000, 10000, k_steering(run)
  redis.call('ZREMRANGEBYSCORE', P .. 'known_runs', '-inf', '(' .. str(now - week))
  if redis.call('EXISTS', key) == 0 and redis.call('ZCARD', P .. 'known_runs') >= most then return false end
  redis.call('ZADD', P .. 'known_runs', str(now), run)
  redis.call('HSETNX', key, 'since_ms', str(now))
  if is_paused(run) then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, week) end
  return true
end

-- A batch is read by its owner, or, with `polled`, polled by its holder, so its lease lasts from now on again. One that
-- tick.lua has found over stays over.
local function renew_lease(batch, polled)
  local lease_ms, finished, cancelled, forsaken = unpack(redis.call(
    'HMGET', k_batch(batch), polled and 'polling_ms' or 'lease_ms', 'finished_ms', 'cancelled_ms', 'forsaken'
  ))
  if not lease_ms or finished or cancelled or forsaken then return end
  local leases, due = P .. (polled and 'leases:polled' or 'leases'), str(served_ms() + tonumber(lease_ms))
  -- The clock stands still between two ticks, so most reads have nothing to write.
  if redis.call('ZSCORE', leases, batch) ~= due then redis.call('ZADD', leases, due, batch) end
end

-- Begin to cancel a batch, for a reason in one word. From now on none of its rollouts can start; `cancellation.py` ends
-- them, and if it stops in the middle, the reconciler goes on with it.
local function begin_cancel(batch, cause)
  redis.call('UNLINK', k_batch(batch, 'outbox'))
  for _, lane in ipairs(redis.call('SMEMBERS', k_batch(batch, 'lanes'))) do redis.call('UNLINK', k_outbox(batch, lane)) end
  redis.call('HSET', k_batch(batch), 'cancelled_ms', str(now_ms()))
  if redis.call('HSETNX', k_batch(batch), 'cancel_cause', cause) == 1 then count('cancelled_for:' .. cause) end
  redis.call('SADD', P .. 'cancelling', batch)
end

-- Queue a batch with a non-empty outbox in a lane among its run's batches there, and the run among the lane's runs: at the
-- front of both, or at the end.
local function enlist(batch, run, lane, front)
  -- The batch may stand there already, and must not get two places. A list that has one element now was empty, so the run
  -- stood in no list. A paused run stands in none; it comes back when it is resumed (steer.lua).
  redis.call('LREM', k_run(lane, run), 0, batch)
  if redis.call(front and 'LPUSH' or 'RPUSH', k_run(lane, run), batch) == 1 and not is_paused(run) then
    redis.call('LREM', k_runs(lane), 0, run)
    redis.call(front and 'LPUSH' or 'RPUSH', k_runs(lane), run)
  end
end

-- Put a rollout back at the front of its batch's outbox.
local function to_outbox(batch, index, priority)
  -- The outbox was empty, so the batch stood in no list of its run.
  if redis.call('LPUSH', k_batch(batch, 'outbox'), index) == 1 then
    enlist(batch, redis.call('HGET', k_batch(batch), 'run'), priority, true)
  end
end

-- Count a claimed rollout in its batch, or take it out: among those that run, unless it is only graded (grade.lua).
local function count_claimed(batch, uid, n)
  if redis.call('HEXISTS', k_rollout(uid), 'stage') == 0 then redis.call('HINCRBY', k_batch(batch), 'running', n) end
end

-- The members of a group that wait for its grade, as a list of indexes.
local function held_members(batch, group)
  local members = {}
  for index in string.gmatch(redis.call('HGET', k_batch(batch, 'group_counts'), 'held:' .. group) or '', '%d+') do
    members[#members + 1] = index
  end
  return members
end

-- Queue a group to be graded, once each of its rollouts waits for that or has ended. Its first member leads: a worker that
-- claims that one grades all of them.
local function ripen(batch, group)
  local counts, members = k_batch(batch, 'group_counts'), held_members(batch, group)
  local size, gone, leader = unpack(redis.call('HMGET', counts, 'size:' .. group, 'gone:' .. group, 'leader:' .. group))
  if leader or #members == 0 or #members + tonumber(gone or '0') < tonumber(size or '0') then return end
  redis.call('HSET', counts, 'leader:' .. group, members[1])
  redis.call('HSET', k_rollout(batch .. '-' .. members[1]), 'leads', '1')
  to_outbox(batch, members[1], redis.call('HGET', k_batch(batch), 'priority'))
end

-- Take a rollout that ends out of those that are graded, and out of its group's: it may have been the last one that the
-- others waited for.
local function leave_grading(batch, index, status)
  local uid, counts = batch .. '-' .. index, k_batch(batch, 'group_counts')
  local grades = redis.call('GET', k_rollout(uid, 'grades'))
  redis.call('ZREM', P .. 'grading', uid)
  redis.call('UNLINK', k_rollout(uid, 'ungraded'), k_rollout(uid, 'grades'))
  -- A cancelled rollout delivers no ids, so nothing belongs to them.
  if status == 'cancelled' then redis.call('UNLINK', k_rollout(uid, 'attachments')) end
  if redis.call('HDEL', k_rollout(uid), 'stage', 'leads', 'held') > 0 then redis.call('HINCRBY', k_batch(batch), 'grading', -1) end
  local group = redis.call('HGET', k_batch(batch, 'groups'), index)
  if not group then return end
  local members = held_members(batch, group)
  for place, member in ipairs(members) do
    if member == index then
      table.remove(members, place)
      redis.call('HSET', counts, 'held:' .. group, table.concat(members, ' '))
      break
    end
  end
  redis.call('HINCRBY', counts, 'gone:' .. group, 1)
  -- Cancelled while it led its group: another member leads, with the grades if there are some. One that failed is not
  -- replaced: it killed its workers, and the next one would too. The others are delivered when the deadline passes.
  local led = status == 'cancelled' and redis.call('HGET', counts, 'leader:' .. group) == index
  if led then
    redis.call('HDEL', counts, 'leader:' .. group)
    if grades and members[1] then redis.call('SET', k_rollout(batch .. '-' .. members[1], 'grades'), grades) end
  end
  ripen(batch, group)
end

-- Count an ended rollout in its group. The first time that a group has enough usable rollouts, or can no longer get
-- enough, it gets its verdict, which never changes.
local function count_in_group(batch, index, status, min_usable, late)
  local group = redis.call('HGET', k_batch(batch, 'groups'), index)
  if not group then return end
  local counts = k_batch(batch, 'group_counts')
  redis.call('HINCRBY', counts, status .. ':' .. group, 1)
  if redis.call('HEXISTS', counts, 'verdict:' .. group) == 1 then return end
  local function n(what) return tonumber(redis.call('HGET', counts, what .. ':' .. group) or '0') end
  local verdict
  if n('completed') >= min_usable then
    verdict = 'usable'
  elseif n('size') - n('failed') - n('cancelled') - n('expired') < min_usable then
    verdict = 'dropped'
  end
  if not verdict then return end
  redis.call('HSET', counts, 'verdict:' .. group, verdict)
  count('group:' .. verdict)
  if late == 'cancel' then redis.call('SADD', P .. 'late', batch .. ' ' .. group) end
end

-- Wake those who wait for a rollout of a batch to end. Only the newest signals are kept: a reader that missed some wakes
-- all of its waiters (signals.py). With `~` Redis cuts whole blocks of the stream, which costs it less.
local function wake(batch) redis.call('XADD', P .. 'finished', 'MAXLEN', '~', '10000', '*', 'batch', batch) end

-- End a rollout; no other code does. `counts` = {field, increment, ...}, added to the batch's hash and to the totals. `row`
-- is a JSON list, its line in the batch's table (rows.py), or '' for none. The caller then wakes those who wait for it.
local function end_rollout(batch, index, status, result, row, counts)
  local uid = batch .. '-' .. index
  local was_status, worker, claimed = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'worker', 'claimed'))
  local found = redis.call(
    'HMGET', k_batch(batch), 'priority', 'total', 'push', 'idempotency', 'v1', 'min_usable', 'late', 'run', 'retention_ms',
    'polled_name', 'owner', 'graded', 'needs'
  )
  local priority, total, push, idempotency, v1, min_usable, late, run, retention_ms, polled, owner, graded = unpack(found, 1, 12)
  local now = now_ms()
  -- 1. It is no worker's any more, and waits nowhere.
  if was_status == 'running' then count_claimed(batch, uid, -1) end
  if graded then leave_grading(batch, str(index), status) end
  detach(uid, worker, priority)
  redis.call('ZREM', P .. 'deadlines', uid)
  redis.call('SREM', P .. 'precancelled', uid)
  redis.call('ZREM', P .. 'delayed', uid)
  redis.call('ZREM', P .. 'suspects', uid)
  if polled then
    redis.call('ZREM', P .. 'leases:polled', batch)
    -- Where an older version has written (tick.lua).
    redis.call('ZREM', P .. 'polling_leases', uid)
    redis.call('HDEL', k_polled(owner), polled)
  end
  -- 2. Its result takes the place of its journal.
  redis.call('HSET', k_rollout(uid), 'status', status, 'ended', str(now))
  redis.call('HDEL', k_rollout(uid), 'token', 'waits')
  redis.call('SET', k_rollout(uid, 'result'), result)
  redis.call('DEL', k_rollout(uid, 'journal'))
  if row ~= '' then
    -- What only Redis knows goes in front: when it ended, and when its last attempt began.
    local timed = '[' .. str(now) .. ',' .. (claimed or 'null') .. ',' .. string.sub(row, 2)
    redis.call('HSET', k_batch(batch, 'rows'), index, timed)
  end
  -- 3. It is counted: in the pool, in its group, in its batch.
  if redis.call('DECR', P .. 'open') <= 0 then redis.call('DEL', P .. 'open') end
  if min_usable then count_in_group(batch, index, status, tonumber(min_usable), late) end
  for i = 1, #counts, 2 do
    redis.call('HINCRBY', k_batch(batch), counts[i], counts[i + 1])
    -- Types of errors are the users' own, so they are counted only as long as there is the batch.
    if string.sub(counts[i], 1, 11) ~= 'tool_error:' then count(counts[i], counts[i + 1]) end
  end
  redis.call('HINCRBY', k_batch(batch), status, 1)
  count('status:' .. status)
  local ended = redis.call('HINCRBY', k_batch(batch), 'ended', 1)
  -- 4. Its readers find it: by cursor, and by webhook where the batch has one.
  redis.call('XADD', k_batch(batch, 'done'), '*', 'index', index, 'status', status)
  if push then
    redis.call('ZADD', P .. 'push:due', str(now), uid)
    redis.call('HINCRBY', k_batch(batch), 'push:pending', 1)
  end
  -- 5. With its last rollout the batch has ended, and the time begins after which it is deleted.
  if ended == tonumber(total) then
    redis.call('HSET', k_batch(batch), 'finished_ms', str(now))
    local lanes = found[13] and redis.call('SMEMBERS', k_batch(batch, 'lanes')) or {}
    lanes[#lanes + 1] = priority
    for _, lane in ipairs(lanes) do
      if lane ~= priority then redis.call('UNLINK', k_outbox(batch, lane)) end
      redis.call('LREM', k_run(lane, run), 0, batch)
      if redis.call('EXISTS', k_run(lane, run)) == 0 then redis.call('LREM', k_runs(lane), 0, run) end
    end
    redis.call('ZADD', P .. 'ended', str(now + tonumber(retention_ms)), batch)
    redis.call('ZREM', P .. 'leases', batch)
    redis.call('SREM', P .. 'open_batches', batch)
    -- Protocol v1's own keys are forgotten after ten minutes, those of rollouts with a polling lease after fifteen.
    if idempotency then redis.call('PEXPIRE', idempotency, polled and 900000 or v1 and 600000 or retention_ms) end
  end
end

-- End a rollout unless it has ended, or another worker holds it; answers as finish.lua says. The caller then wakes.
local function finish(batch, index, token, new_status, result, row, counts)
  local total = redis.call('HGET', k_batch(batch), 'total')
  -- A deleted batch, or an index beyond the batch: nothing may be counted for a rollout that never was.
  if not total or tonumber(index) >= tonumber(total) then return 'gone' end
  local status, holder_token, worker = unpack(redis.call('HMGET', k_rollout(batch .. '-' .. index), 'status', 'token', 'worker'))
  if TERMINAL[status or ''] then return status end
  if token ~= '' and holder_token ~= token then return 'fenced' end
  -- Ended from outside: the next beat of its worker brings the order to stop.
  if token == '' and status == 'running' then redis.call('SADD', k_worker(worker, 'stop'), holder_token) end
  end_rollout(batch, index, new_status, result, row, counts)
  return 'ok'
end

-- A push that was due is over: it was delivered, given up, or stopped.
local function end_push(batch, uid, outcome)
  -- It was settled before, by this very call or by a cancel, and must not be counted twice.
  if redis.call('ZREM', P .. 'push:due', uid) == 0 then return 0 end
  count('push:' .. outcome)
  redis.call('HDEL', P .. 'push:attempts', uid)
  if redis.call('EXISTS', k_batch(batch)) == 1 then
    local pending = redis.call('HINCRBY', k_batch(batch), 'push:pending', -1)
    redis.call('HINCRBY', k_batch(batch), 'push:' .. outcome, 1)
    -- It was kept for this (hold_pushes.lua).
    if pending <= 0 and redis.call('HEXISTS', k_batch(batch), 'held_for_pushes') == 1 then
      redis.call('ZADD', P .. 'ended', 'XX', str(now_ms()), batch)
    end
  end
  return 1
end
