-- Put behind the other shared files, and behind what capabilities declare, because it calls them: the end of a rollout.

-- End a rollout; no other code does. `counts` = {field, increment, ...}, added to the batch's hash and to the totals. `row`
-- is a JSON list, its line in the batch's table (rows.py), or '' for none. The caller then wakes those who wait for it.
local function end_rollout(batch, index, status, result, row, counts)
  local uid = batch .. '-' .. index
  local was_status, worker, claimed = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'worker', 'claimed'))
  local found = redis.call(
    'HMGET', k_batch(batch), 'priority', 'total', 'idempotency', 'v1', 'min_usable', 'late', 'run', 'retention_ms', 'key_ms',
    'needs'
  )
  local priority, total, idempotency, v1, min_usable, late, run, retention_ms, key_ms, needs = unpack(found, 1, 10)
  local now = now_ms()
  -- 1. It is no worker's any more, and waits nowhere.
  if was_status == 'running' then count_claimed(batch, uid, -1) end
  detach(uid, worker, priority)
  redis.call('ZREM', P .. 'deadlines', uid)
  redis.call('SREM', P .. 'precancelled', uid)
  redis.call('ZREM', P .. 'delayed', uid)
  redis.call('ZREM', P .. 'suspects', uid)
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
  -- 4. Its readers find it by cursor.
  redis.call('XADD', k_batch(batch, 'done'), '*', 'index', index, 'status', status)
  -- @on_end(batch, uid, str(index), status, now)
  -- 5. With its last rollout the batch has ended, and the time begins after which it is deleted.
  if ended == tonumber(total) then
    redis.call('HSET', k_batch(batch), 'finished_ms', str(now))
    local lanes = needs and redis.call('SMEMBERS', k_batch(batch, 'lanes')) or {}
    lanes[#lanes + 1] = priority
    for _, lane in ipairs(lanes) do
      if lane ~= priority then redis.call('UNLINK', k_outbox(batch, lane)) end
      redis.call('LREM', k_run(lane, run), 0, batch)
      if redis.call('EXISTS', k_run(lane, run)) == 0 then redis.call('LREM', k_runs(lane), 0, run) end
    end
    redis.call('ZADD', P .. 'ended', str(now + tonumber(retention_ms)), batch)
    redis.call('ZREM', P .. 'leases', batch)
    redis.call('SREM', P .. 'open_batches', batch)
    -- Protocol v1's own keys are forgotten after ten minutes, if no capability says otherwise.
    if idempotency then redis.call('PEXPIRE', idempotency, key_ms or v1 and 600000 or retention_ms) end
  end
end

-- End a rollout unless it has ended, or another worker holds it; answers as finish.lua says. The caller then wakes.
local function finish(batch, index, token, new_status, result, row, counts)
  local total, deleting = unpack(redis.call('HMGET', k_batch(batch), 'total', 'deleting'))
  -- A deleted batch, or an index beyond the batch: nothing may be counted for a rollout that never was. While a batch is
  -- deleted, what says that its rollouts have ended goes before the rest: each would end, and be counted, once more.
  if not total or deleting or tonumber(index) >= tonumber(total) then return 'gone' end
  local status, holder_token, worker = unpack(redis.call('HMGET', k_rollout(batch .. '-' .. index), 'status', 'token', 'worker'))
  if TERMINAL[status or ''] then return status end
  if token ~= '' and holder_token ~= token then return 'fenced' end
  -- Ended from outside: the next beat of its worker brings the order to stop.
  if token == '' and status == 'running' then redis.call('SADD', k_worker(worker, 'stop'), holder_token) end
  end_rollout(batch, index, new_status, result, row, counts)
  return 'ok'
end
