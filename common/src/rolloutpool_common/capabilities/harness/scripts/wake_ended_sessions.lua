-- Wake sessions that have ended while their workers gave them back.
-- Answer: how many were woken.
local woken = 0
for _, uid in ipairs(redis.call('SMEMBERS', ENDED)) do
  local status = redis.call('HGET', k_rollout(uid), 'status')
  if status ~= 'running' then
    redis.call('SREM', ENDED, uid)
    if status == 'queued' then
      wake_session(string.match(uid, '^(.*)%-(%d+)$'))
      woken = woken + 1
    end
  end
end
return woken
