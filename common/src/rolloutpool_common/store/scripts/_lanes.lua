-- Put behind the prelude of the scripts that look at what rollouts need and workers offer (lanes.py; connection.py says which).
--
-- A lane is a priority class, or the part of one that needs what not every worker has: 'default~{digest of the needs}'. Lists of
-- runs and batches, turns and outboxes are kept for each lane. Needs and offers are spelled as `{digest} {JSON list of names}`
-- (protocol/offers.py), the digest in 32 characters.
local RELEASE = '"release:3"'
local function k_lanes(priority) return P .. 'lanes:' .. priority end
local function k_routed(priority, offer) return P .. 'routed:' .. priority .. ':' .. offer end

-- What a rollout needs of its worker; nil where every worker can run it, and where there is no worker yet as well. `needs`
-- and `others` are the fields of its batch; with `others` its rollouts need different things, and some of them nothing.
local function needs_of(batch, index, needs, others)
  local own = needs and (others and redis.call('HGET', k_batch(batch, 'needs'), index) or needs)
  return own and string.sub(own, 34) ~= '[]' and own or nil
end

-- Whether a spelled offer has all names of spelled needs.
local function covers(offer, needs)
  if offer == needs then return true end
  local has = {}
  for _, name in ipairs(cjson.decode(string.sub(offer, 34))) do has[name] = true end
  for _, name in ipairs(cjson.decode(string.sub(needs, 34))) do
    if not has[name] then return false end
  end
  return true
end

-- Whether a worker can run what needs this (or nil). One whose record is lost looks for itself.
local function is_suited(worker, needs)
  local offer = needs and redis.call('HGET', k_worker(worker), 'offer')
  return not offer or covers(offer, needs)
end

-- Spelled needs (or nil), and that the worker reads the data of this release. The digest only
-- names a lane, so any other one will do.
local function with_release(needs)
  local names = needs and cjson.decode(string.sub(needs, 34)) or {}
  names[#names + 1] = cjson.decode(RELEASE)
  table.sort(names)
  return (needs and string.reverse(string.sub(needs, 1, 32)) or string.rep('3', 32)) .. ' ' .. cjson.encode(names)
end

-- All lanes: the three classes, and the parts of them that need what not every worker has.
local function all_lanes()
  local lanes = {}
  for _, priority in ipairs({ 'high', 'default', 'low' }) do
    lanes[#lanes + 1] = priority
    for _, needs in ipairs(redis.call('LRANGE', k_lanes(priority), 0, -1)) do
      lanes[#lanes + 1] = priority .. '~' .. string.sub(needs, 1, 32)
    end
  end
  return lanes
end

-- Open the lane of what is needed, and queue a batch there, something of which waits in it.
local function open_lane(batch, priority, needs, front)
  local lane = priority .. '~' .. string.sub(needs, 1, 32)
  redis.call('SADD', k_batch(batch, 'lanes'), lane)
  redis.call('LREM', k_lanes(priority), 0, needs)
  redis.call('RPUSH', k_lanes(priority), needs)
  enlist(batch, redis.call('HGET', k_batch(batch), 'run'), lane, front)
end

-- Let a queued rollout wait in the lane of what it needs, because not every worker can run it.
local function to_lane(batch, index, priority, needs, front)
  local outbox = k_outbox(batch, priority .. '~' .. string.sub(needs, 1, 32))
  if redis.call(front and 'LPUSH' or 'RPUSH', outbox, index) == 1 then open_lane(batch, priority, needs, front) end
end
