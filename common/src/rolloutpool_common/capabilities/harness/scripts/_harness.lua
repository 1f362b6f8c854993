-- What the scripts of sessions share, and their part in the kernel's (`harness_on_…`).
local WANTED = P .. 'places:wanted'
local HELD = P .. 'places:held'
local function k_door(address, part) return part and (P .. 'door:' .. address .. ':' .. part) or (P .. 'door:' .. address) end

-- Have the leases of all places begin anew where Redis was started, or no runner has reached it for 5 s (one asks twice a
-- second while it has room, and each renews every 3 s): nobody could renew. Returns whether Redis was started in the last 5 s,
-- and runners may still have to say which places it has lost (`has_place`).
local function after_silence(now, lease_ms)
  local key = P .. 'places:heard'
  local before, at, started = unpack(redis.call('HMGET', key, 'epoch', 'ms', 'started'))
  if before ~= epoch() and tonumber(epoch()) > 1 then started = str(now) end
  redis.call('HSET', key, 'epoch', epoch(), 'ms', str(now), 'started', started or '0')
  if before ~= epoch() or now - tonumber(at) >= 5000 then
    for _, uid in ipairs(redis.call('ZRANGE', HELD, 0, -1)) do redis.call('ZADD', HELD, str(now + lease_ms), uid) end
  end
  return math.abs(now - tonumber(started or '0')) < 5000
end

-- Whether there is such a rollout. While its batch is deleted there is none any more: what says that it has ended goes first.
local function is_there(batch, index)
  return redis.call('HEXISTS', k_batch(batch, 'items'), index) == 1 and redis.call('HEXISTS', k_batch(batch), 'deleting') == 0
end

-- Have a worker look at a session's calls: the one that runs it, which is told `news` or the session's uid, or the next one that
-- claims it. A session that waits for its program's next call is delayed, and is put at the front of the queue; returns 1 then,
-- because somebody has to publish it.
local function wake_session(batch, index, news)
  local uid = batch .. '-' .. index
  local status, worker = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'worker'))
  if status == 'running' then
    redis.call('PUBLISH', k_worker(worker, 'calls'), news or uid)
  elseif status == 'queued' and redis.call('HEXISTS', k_rollout(uid, 'session'), 'idle') == 1 then
    redis.call('HDEL', k_rollout(uid, 'session'), 'idle')
    if redis.call('ZREM', P .. 'delayed', uid) == 1 then
      to_outbox(batch, index, redis.call('HGET', k_batch(batch), 'priority'))
      return 1
    end
  end
  return 0
end

-- Note that a program has the last byte of a reply, unless another connection holds the call meanwhile.
local function taken_call(key, n, holder)
  return redis.call('HGET', key, 'held:' .. n) == holder and redis.call('HDEL', key, 'held:' .. n) or 0
end

-- Keep the reply to a call, unless it has one, and tell the door that holds its connection. Returns its place among the replies.
local function keep_reply(uid, n, reply)
  local key, replies = k_rollout(uid, 'session'), k_rollout(uid, 'replies')
  local known = redis.call('HGET', replies, n)
  local by, replied, open, idle = unpack(redis.call('HMGET', key, 'held:' .. n, 'replied', 'open', 'idle'))
  local place
  if known then
    place = tonumber(string.match(known, '^%d+'))
  else
    place = tonumber(replied or '0') + 1
    redis.call('HSET', replies, n, place .. ' ' .. reply)
    redis.call('HSET', key, 'replied', place, 'open', tonumber(open or '0') - 1)
    if idle then redis.call('HDEL', key, 'idle') end
  end
  local address = by and string.match(by, '^(%S+) ')
  if address then redis.call('PUBLISH', k_door(address, 'ready'), uid .. ' ' .. n .. ' ' .. reply) end
  return place
end

-- A reply is kept in the step that writes its turn into the journal.
local function harness_on_record(uid, note, answer)
  local n, reply = string.match(note, '^harness (%d+) (.*)$')
  if n then answer[3] = keep_reply(uid, n, reply) end
end

-- Whether a rollout's calls can be answered no more: it has ended, or it is sampled and waits for its grade.
local function is_sampled(uid)
  local status, stage = unpack(redis.call('HMGET', k_rollout(uid), 'status', 'stage'))
  return TERMINAL[status or ''] or stage
end

-- Whether a runner has a place of this number: by the token of its lease, or because Redis has lost with its last second that
-- the place was taken. Given out again, two programs would have one number, and no door could tell them apart.
local function has_place(uid, number, token)
  local key = k_rollout(uid, 'session')
  local lease, place = unpack(redis.call('HMGET', key, 'lease', 'place'))
  if lease == token then return true end
  if tonumber(place or '0') >= tonumber(number) or redis.call('EXISTS', k_rollout(uid)) == 0 or is_sampled(uid) then
    return false
  end
  redis.call('HSET', key, 'lease', token, 'place', number)
  redis.call('ZREM', WANTED, uid)
  return true
end

-- A session is given back, to wait for the program's next call. Its worker does not see any more that the call has come
-- meanwhile, or the end.
local function harness_on_release(batch, _, index)
  local open, over = unpack(redis.call('HMGET', k_rollout(batch .. '-' .. index, 'session'), 'open', 'over'))
  if over or tonumber(open or '0') > 0 then wake_session(batch, index) end
end

-- Its calls can be answered no more. What was said is in its journal, and so in its result. What was noted of each call takes
-- some 100 bytes, and is of no use until its batch is deleted; what a session was is still shown, and its runner still has it.
local function harness_on_end(_, uid)
  redis.call('ZREM', WANTED, uid)
  redis.call('ZREM', HELD, uid)
  local key, kept = k_rollout(uid, 'session'), {}
  for _, name in ipairs({ 'place', 'lease', 'calls', 'over' }) do
    local value = redis.call('HGET', key, name)
    if value then
      kept[#kept + 1] = name
      kept[#kept + 1] = value
    end
  end
  redis.call('UNLINK', key, k_rollout(uid, 'calls'), k_rollout(uid, 'said'), k_rollout(uid, 'replies'))
  if #kept > 0 then redis.call('HSET', key, unpack(kept)) end
end
