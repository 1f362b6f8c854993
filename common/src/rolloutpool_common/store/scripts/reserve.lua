-- Take tickets out of the outboxes of one priority class, to be published to the broker now.
-- ARGV: priority, most tickets, window per worker, ms without a beat after which no worker is counted on.
-- Answer: now_ms, tickets (a list of {batch, index, group or '', rollouts of the batch}), more_waiting (1: outboxes of the
-- class hold more), open (rollouts of the whole pool that have not ended; 0 where nothing of this class waits).
--
-- The window: at most (live workers) x (window per worker) tickets of a class are published and unclaimed. More would only
-- stand in the broker in front of what is submitted later.
-- The turns: runs take turns in filling the window. In its turn a run gives as many tickets as its weight, from its
-- batches in their order of submission. If the window is full in the middle of a turn, the rest of that turn is noted in
-- `turn` and comes first next time. Places become free one by one, so without that note every run would give one ticket
-- at a time, whatever its weight.
-- Example: weights 3 and 1, four places: A A A B. Two places, then two: A A, then A B.
local priority, limit = ARGV[1], tonumber(ARGV[2])
local runs, published = k_runs(priority), k_published(priority)
-- Each submit asks for all classes, and in most of them nothing waits.
if redis.call('EXISTS', runs) == 0 then return { 'now_ms', '0', 'tickets', {}, 'more_waiting', 0, 'open', 0 } end
local ms = now_ms()
local workers = redis.call('ZCOUNT', P .. 'workers', str(ms - tonumber(ARGV[4])), '+inf')
local room = math.min(limit, math.max(workers, 1) * tonumber(ARGV[3]) - redis.call('ZCARD', published))
local now = str(ms)
local tickets = {}

-- Whether a queued rollout waits in another place than an outbox.
local waiting_places = { published }
for _, place in ipairs({ P .. 'delayed', P .. 'suspects' }) do
  -- Nearly always nothing is delayed or suspected; one look saves one per ticket.
  if redis.call('EXISTS', place) == 1 then waiting_places[#waiting_places + 1] = place end
end
local function stands_elsewhere(uid)
  for _, place in ipairs(waiting_places) do
    if redis.call('ZSCORE', place, uid) then return true end
  end
  return false
end

-- The next ticket of a run; nil when its outboxes are empty.
local function next_of(batches)
  while true do
    local batch = redis.call('LINDEX', batches, 0)
    if not batch then return nil end
    -- Nil where a cancel has removed the outbox.
    local index = redis.call('LPOP', k_batch(batch, 'outbox'))
    if redis.call('EXISTS', k_batch(batch, 'outbox')) == 0 then redis.call('LPOP', batches) end
    if index then
      local uid = batch .. '-' .. index
      local status, held, leads = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'held', 'leads'))
      -- A second entry of a rollout that somebody has already (places.py): who has it puts it back if need be.
      local taken = status == 'running' or (held and not leads) or stands_elsewhere(uid)
      if not TERMINAL[status or ''] and not taken then return batch, index end
    end
  end
end

local noted_turn = room > 0 and redis.call('GETDEL', k_turn(priority)) or ''
while room > 0 do
  local run = redis.call('LPOP', runs)
  if not run then break end
  local batches = k_run(priority, run)
  local first = redis.call('LINDEX', batches, 0)
  -- A run has no hash of its own; its weight is that of its first batch.
  local turn = first and tonumber(redis.call('HGET', k_batch(first), 'weight') or '1') or 0
  local rest = string.match(noted_turn, '^(%d+) ')
  if rest and noted_turn == rest .. ' ' .. run then turn = tonumber(rest) end
  noted_turn = ''
  while turn > 0 and room > 0 do
    local batch, index = next_of(batches)
    if not batch then break end
    redis.call('ZADD', published, now, batch .. '-' .. index)
    tickets[#tickets + 1] = {
      batch, index, redis.call('HGET', k_batch(batch, 'groups'), index) or '', redis.call('HGET', k_batch(batch), 'total')
    }
    turn, room = turn - 1, room - 1
  end
  if redis.call('EXISTS', batches) == 1 then
    if turn > 0 then redis.call('SET', k_turn(priority), str(turn) .. ' ' .. run, 'EX', 3600) end
    redis.call(turn > 0 and 'LPUSH' or 'RPUSH', runs, run)
  end
end
return {
  'now_ms', now,
  'tickets', tickets,
  'more_waiting', redis.call('EXISTS', runs),
  'open', tonumber(redis.call('GET', P .. 'open') or '0'),
}
