-- Cancel some rollouts of a batch, and tell capabilities of those that had ended otherwise.
-- ARGV: batch, then index, result, row, index, result, row, ...: a result without samples for each rollout that had not
-- ended, with its row; '' and '' for each that had.
-- Answer: how many rollouts this call has ended; or that of `other_capabilities`.
local batch, cancelled = ARGV[1], 0
local others = other_capabilities(batch)
if others then return others end
for i = 2, #ARGV, 3 do
  local index, result, row = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local status
  -- It had ended when the caller looked, and an end is final.
  if result == '' then
    status = redis.call('HGET', k_rollout(batch .. '-' .. index), 'status')
  else
    status = finish(batch, index, '', 'cancelled', result, row, {})
  end
  if status == 'ok' then
    cancelled = cancelled + 1
    account_end(batch, index, 'cancelled', #result + #row, 0)
  elseif TERMINAL[status or ''] and status ~= 'cancelled' then
    -- @on_late_cancel(batch, batch .. '-' .. index)
  end
end
-- One signal for all of them: a waiter looks at its whole batch again.
if cancelled > 0 then wake(batch) end
return cancelled
