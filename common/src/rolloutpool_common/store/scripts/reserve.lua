-- Take up to `limit` indexes out of the outboxes of one priority class, batch by batch in turn, as long as fewer
-- than `window` tickets of the class are published. ARGV: priority, limit, window. -> {now ms, batch, index, group, ...}
local priority, limit, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local runs, published = k_runs(priority), k_published(priority)
local room = math.min(limit, window - redis.call('ZCARD', published))
local now = str(now_ms())
local out = { now }
while room > 0 do
  local b = redis.call('LPOP', runs)
  if not b then break end
  local index = redis.call('LPOP', k_batch(b, 'outbox'))
  if index then
    if redis.call('EXISTS', k_batch(b, 'outbox')) == 1 then redis.call('RPUSH', runs, b) end
    local uid = b .. '-' .. index
    local state = redis.call('HGET', k_rollout(uid), 's')
    -- Who runs a rollout puts it back if need be.
    if not TERMINAL[state or ''] and state ~= 'running' then
      redis.call('ZADD', published, now, uid)
      out[#out + 1] = b
      out[#out + 1] = index
      out[#out + 1] = redis.call('HGET', k_batch(b, 'groups'), index) or ''
      room = room - 1
    end
  end
end
return out
