-- Note what the live workers offer, for reserve.lua. By the process that reconciles, once a second.
-- ARGV: ms without a beat after which no worker is counted on, then worker, offer, ...: of those that have announced
-- themselves without saying what they offer, what their announcement shows.
-- Answer: unread (a list of {worker, announcement} of such workers, of whom nothing is noted yet), gone (a list of
-- {priority, offer}: nobody takes messages from this queue any more), risen (1: the data is of this release's schema from now
-- on).
--
-- 1. `offers` has for each offer `{workers that beat} {1, or 0: they take no messages from a queue of their own} {offer}`.
-- 2. Workers that shut down, that were declared dead, and isolated ones do not count.
-- 3. `older` is there while a worker lives that does not read the data of this release. With the last of them goes the older
--    version of the data (schema.py).
-- 4. Tickets in the queue of an offer that nobody has any more go back into their outboxes here. The queue is emptied
--    afterwards (publisher.py), and is named as gone once more in the next round, if the process dies in between.
local since = now_ms() - tonumber(ARGV[1])
local read, skipped, unread = {}, {}, {}
for i = 2, #ARGV, 2 do
  if redis.call('EXISTS', k_worker(ARGV[i])) == 1 then redis.call('HSET', k_worker(ARGV[i]), 'read_offer', ARGV[i + 1]) end
end
for _, worker in ipairs(redis.call('SMEMBERS', P .. 'isolated')) do skipped[worker] = true end
for _, worker in ipairs(redis.call('ZRANGE', P .. 'condemned', 0, -1)) do skipped[worker] = true end

-- 1. Who offers what.
local found = redis.call('ZRANGE', P .. 'workers', 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local worker = found[i]
  local own, shown, draining = unpack(redis.call('HMGET', k_worker(worker), 'offer', 'read_offer', 'draining'))
  local offer = own or shown
  if not offer and not skipped[worker] then
    local about = redis.call('HGET', k_worker(worker), 'about')
    if about then unread[#unread + 1] = { worker, about } end
  elseif not skipped[worker] and draining ~= '1' then
    local digest = string.sub(offer, 1, 32)
    local one = read[digest] or { workers = 0, routes = 0, offer = offer }
    read[digest] = one
    if tonumber(found[i + 1]) >= since then one.workers = one.workers + 1 end
    if own then one.routes = 1 end
  end
end

-- 2. Write what has changed.
local is_older, risen = #unread > 0, 0
for _, one in pairs(read) do is_older = is_older or not string.find(one.offer, RELEASE, 1, true) end
if is_older then
  redis.call('SET', P .. 'older', 1)
elseif redis.call('DEL', P .. 'older') == 1 then
  redis.call('SET', P .. 'schema', 3)
  risen = 1
end
redis.call('HSETNX', P .. 'offers', 'read', '')
local noted = redis.call('HGETALL', P .. 'offers')
local before = {}
for i = 1, #noted, 2 do
  before[noted[i]] = noted[i + 1]
  if noted[i] ~= 'read' and not read[noted[i]] then redis.call('HDEL', P .. 'offers', noted[i]) end
end
for digest, one in pairs(read) do
  local text = str(one.workers) .. ' ' .. one.routes .. ' ' .. one.offer
  if before[digest] ~= text then redis.call('HSET', P .. 'offers', digest, text) end
end

-- 4. Strike off what was claimed, and empty the queues that nobody reads.
local gone = {}
for _, route in ipairs(redis.call('SMEMBERS', P .. 'routes')) do
  local priority, digest = string.match(route, '^(%a+):(%x+)$')
  local routed, alive = k_routed(priority, digest), read[digest] and read[digest].routes == 1
  local was_empty = redis.call('EXISTS', routed) == 0
  local entries = redis.call('ZRANGE', routed, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local uid, waits = entries[i], redis.call('ZSCORE', k_published(priority), entries[i]) == entries[i + 1]
    if not waits or not alive then redis.call('ZREM', routed, uid) end
    if waits and not alive then
      redis.call('ZREM', k_published(priority), uid)
      local batch, index = string.match(uid, '^(.*)%-(%d+)$')
      if redis.call('EXISTS', k_batch(batch)) == 1 then to_outbox(batch, index, priority) end
    end
  end
  if not alive then
    gone[#gone + 1] = { priority, digest }
    if was_empty then redis.call('SREM', P .. 'routes', route) end
  end
end
return { 'unread', unread, 'gone', gone, 'risen', risen }
