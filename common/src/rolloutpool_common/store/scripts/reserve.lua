-- Take tickets out of the outboxes of one priority class, to be published to the broker now.
-- ARGV: priority, most tickets, window per worker, ms without a beat after which no worker is counted on.
-- Answer: now_ms, tickets (a list of {batch, index, group or '', rollouts of the batch, offer whose queue it goes to or ''}),
-- more_waiting (1: outboxes of the class hold more), open (rollouts of the whole pool that have not ended; 0 where nothing
-- of this class waits).
--
-- The window: at most (live workers) x (window per worker) tickets of a class are published and unclaimed. More would only
-- stand in the broker in front of what is submitted later.
-- The turns: runs take turns in filling the window. In its turn a run gives as many tickets as its weight, from its
-- batches in their order of submission. If the window is full in the middle of a turn, the rest of that turn is noted in
-- `turn` and comes first next time. Places become free one by one, so without that note every run would give one ticket
-- at a time, whatever its weight.
-- Example: weights 3 and 1, four places: A A A B. Two places, then two: A A, then A B.
--
-- The room: where Redis may not have enough for all that was accepted (usage.py), only so many rollouts are published or run
-- at a time, and fewer of the owners who hold most. The runs that must wait keep their place among themselves.
--
-- The lanes: a rollout that needs what every worker has takes part in this with all others. Where some workers lack it, the
-- rollout leaves the outbox for the lane of its needs, so that nothing waits behind it. A lane has outboxes and turns of its
-- own, and its tickets go to the queues of the offers that are suited; no more of them than those workers' share of the
-- window. While nobody is suited, the lane waits. Once every worker is suited, it goes back among the others.
local priority, limit, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local MOST_MOVED, MOST_LANES, MOST_PASSED = 2000, 32, 200
local runs, published = k_runs(priority), k_published(priority)
-- Each submit asks for all classes, and in most of them nothing waits.
if redis.call('EXISTS', runs, k_lanes(priority)) == 0 then return { 'now_ms', '0', 'tickets', {}, 'more_waiting', 0, 'open', 0 } end
local ms = now_ms()
local workers = redis.call('ZCOUNT', P .. 'workers', str(ms - tonumber(ARGV[4])), '+inf')
local room = math.min(limit, math.max(workers, 1) * window - redis.call('ZCARD', published))
local now = str(ms)
local tickets, moved = {}, 0

-- How many more may be published of the owners who hold most; nil where there is room for all. What runs is counted by the
-- claims of the workers.
local room_of_largest, most_at_once
most_at_once, room_of_largest = unpack(redis.call('HMGET', P .. 'room', 'all', 'largest'))
if most_at_once then
  local busy = 0
  for _, class in ipairs({ 'high', 'default', 'low' }) do busy = busy + redis.call('ZCARD', k_published(class)) end
  for _, worker in ipairs(redis.call('ZRANGE', P .. 'workers', 0, -1)) do
    busy = busy + redis.call('SCARD', k_worker(worker, 'claims'))
  end
  room = math.min(room, tonumber(most_at_once) - busy)
  room_of_largest = tonumber(room_of_largest) - busy
else
  room_of_largest = nil
end
local function is_held(batch)
  local owner = room_of_largest and redis.call('HGET', k_batch(batch), 'owner')
  return owner and redis.call('HEXISTS', P .. 'room', 'held:' .. owner) == 1
end

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

-- What the live workers offer (offers.lua), read when the first rollout comes that needs something.
local offers, offers_read
local function read_offers()
  offers = {}
  local found = redis.call('HGETALL', P .. 'offers')
  offers_read = #found > 0
  for i = 1, #found, 2 do
    local n, routes, names = string.match(found[i + 1], '^(%d+) (%d) (.*)$')
    if n then offers[#offers + 1] = { digest = found[i], workers = tonumber(n), routes = routes == '1', names = names } end
  end
end

-- How many more tickets may be published to an offer's queue. Those that were claimed are struck off from the oldest on.
local function free_places(offer)
  local routed, most = k_routed(priority, offer.digest), math.max(offer.workers, 1) * window
  while redis.call('ZCARD', routed) >= most do
    local uid, at = unpack(redis.call('ZRANGE', routed, 0, 0, 'WITHSCORES'))
    if redis.call('ZSCORE', published, uid) == at then return 0 end
    redis.call('ZREM', routed, uid)
  end
  return most - redis.call('ZCARD', routed)
end

-- Who can run what needs this: `every` worker, or the offers `suited` that have queues.
local known = {}
local function place_of(needs)
  if known[needs] then return known[needs] end
  if not offers then read_offers() end
  -- Before anybody has looked at the workers, each gets what it asks for, and says if it is not suited.
  local place = { every = #offers > 0 or not offers_read, suited = {} }
  for _, offer in ipairs(offers) do
    if not covers(offer.names, needs) then
      place.every = false
    elseif offer.routes then
      place.suited[#place.suited + 1] = offer
    end
  end
  known[needs] = place
  return place
end

-- Move all of a batch into the lane of its needs, where its rollouts all need the same; false where some are there already.
local function whole_to_lane(batch, needs)
  local outbox = k_batch(batch, 'outbox')
  if redis.call('EXISTS', outbox) == 0 then return false end
  if redis.call('RENAMENX', outbox, k_outbox(batch, priority .. '~' .. string.sub(needs, 1, 32))) == 0 then return false end
  open_lane(batch, priority, needs, false)
  moved = moved + 1
  return true
end

-- The next ticket of a run in a lane; nil when its outboxes are empty.
local function next_of(batches, lane, outbox)
  while moved < MOST_MOVED do
    local batch = redis.call('LINDEX', batches, 0)
    if not batch then return nil end
    local total, needs, others = unpack(redis.call('HMGET', k_batch(batch), 'total', 'needs', 'other_needs'))
    if lane == priority and needs and not others and not place_of(needs).every and whole_to_lane(batch, needs) then
      redis.call('LPOP', batches)
    else
      -- Nil where a cancel has removed the outbox.
      local index = redis.call('LPOP', k_batch(batch, outbox))
      if redis.call('EXISTS', k_batch(batch, outbox)) == 0 then redis.call('LPOP', batches) end
      if index then
        local uid = batch .. '-' .. index
        local status, held, leads = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'held', 'leads'))
        -- A second entry of a rollout that somebody has already (strays.py): who has it puts it back if need be.
        local taken = status == 'running' or (held and not leads) or stands_elsewhere(uid)
        needs = lane == priority and needs_of(batch, index, needs, others)
        if TERMINAL[status or ''] or taken then
          needs = nil
        elseif needs and not place_of(needs).every then
          to_lane(batch, index, priority, needs, status)
          moved = moved + 1
        else
          return batch, index, total
        end
      end
    end
  end
end

-- Publish tickets of a lane, at most as many as `most`; `choose` names the offer for the next one, or ''.
local function fill(lane, most, choose)
  if most <= 0 then return end
  local noted_turn, outbox = redis.call('GETDEL', k_turn(lane)) or '', 'outbox' .. (string.match(lane, '~.*') or '')
  local passed = {}
  while most > 0 and moved < MOST_MOVED and #passed < MOST_PASSED do
    local run = redis.call('LPOP', k_runs(lane))
    if not run then break end
    local batches = k_run(lane, run)
    local first = redis.call('LINDEX', batches, 0)
    local held = first and is_held(first)
    -- A run has no hash of its own; its weight is that of its first batch.
    local turn = first and tonumber(redis.call('HGET', k_batch(first), 'weight') or '1') or 0
    local rest = string.match(noted_turn, '^(%d+) ')
    if rest and noted_turn == rest .. ' ' .. run then turn = tonumber(rest) end
    noted_turn = ''
    while turn > 0 and most > 0 and not (held and room_of_largest <= 0) do
      local batch, index, total = next_of(batches, lane, outbox)
      if not batch then break end
      local uid, offer = batch .. '-' .. index, choose()
      redis.call('ZADD', published, now, uid)
      if offer ~= '' then
        redis.call('ZADD', k_routed(priority, offer), now, uid)
        redis.call('SADD', P .. 'routes', priority .. ':' .. offer)
      end
      tickets[#tickets + 1] = { batch, index, redis.call('HGET', k_batch(batch, 'groups'), index) or '', total, offer }
      turn, most, room = turn - 1, most - 1, room - 1
      if held then room_of_largest = room_of_largest - 1 end
    end
    if held and room_of_largest <= 0 then
      if redis.call('EXISTS', batches) == 1 then passed[#passed + 1] = run end
    elseif redis.call('EXISTS', batches) == 1 then
      if turn > 0 then redis.call('SET', k_turn(lane), str(turn) .. ' ' .. run, 'EX', 3600) end
      redis.call(turn > 0 and 'LPUSH' or 'RPUSH', k_runs(lane), run)
    end
  end
  for _, run in ipairs(passed) do redis.call('RPUSH', k_runs(lane), run) end
end

-- Put what waits in a lane back among the others, in its order. Batches of paused runs stay until these are resumed.
local function dissolve(lane)
  local run = redis.call('LINDEX', k_runs(lane), 0)
  while run and moved < MOST_MOVED do
    local batch = redis.call('LINDEX', k_run(lane, run), -1)
    if not batch then
      redis.call('LREM', k_runs(lane), 0, run)
      run = redis.call('LINDEX', k_runs(lane), 0)
    else
      local from, to = k_outbox(batch, lane), k_batch(batch, 'outbox')
      if redis.call('EXISTS', to) == 1 then
        local index = redis.call('RPOP', from)
        if index then redis.call('LPUSH', to, index) end
      elseif redis.call('EXISTS', from) == 1 then
        redis.call('RENAME', from, to)
        enlist(batch, run, priority, true)
      end
      if redis.call('EXISTS', from) == 0 then redis.call('RPOP', k_run(lane, run)) end
      moved = moved + 1
    end
  end
end

local function fill_lanes()
  for _ = 1, math.min(redis.call('LLEN', k_lanes(priority)), MOST_LANES) do
    if room <= 0 then return end
    -- In turns, because there may be more lanes than one call looks at.
    local needs = redis.call('LMOVE', k_lanes(priority), k_lanes(priority), 'LEFT', 'RIGHT')
    local lane, place = priority .. '~' .. string.sub(needs, 1, 32), place_of(needs)
    if place.every then
      dissolve(lane)
    elseif redis.call('EXISTS', k_runs(lane)) == 1 then
      local free, all = {}, 0
      for i, offer in ipairs(place.suited) do
        free[i] = free_places(offer)
        all = all + free[i]
      end
      fill(lane, math.min(room, all), function()
        local best = 1
        for i = 2, #free do if free[i] > free[best] then best = i end end
        free[best] = free[best] - 1
        return place.suited[best].digest
      end)
    end
    -- A paused run stands in no list of runs, and may have something here.
    if redis.call('EXISTS', k_runs(lane), P .. 'paused') == 0 then redis.call('LREM', k_lanes(priority), 0, needs) end
  end
end

fill_lanes()
fill(priority, room, function() return '' end)
-- What has just gone to a lane need not wait for the next call.
if moved > 0 then fill_lanes() end
return {
  'now_ms', now,
  'tickets', tickets,
  'more_waiting', redis.call('EXISTS', runs),
  'open', tonumber(redis.call('GET', P .. 'open') or '0'),
}
