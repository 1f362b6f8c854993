-- End a paused run that nobody has resumed in time: begin to cancel its batches, and resume it.
-- ARGV: run, batch, ... (its batches that have not ended)
-- Answer: 1, or 0: it was resumed or paused anew meanwhile, or callers have not had the time to come back (tick.lua), and
-- nothing was done.
local run = ARGV[1]
local due = redis.call('ZSCORE', P .. 'paused', run)
if not due or tonumber(due) > served_ms() then return 0 end
if is_quiet() then return 0 end
for i = 2, #ARGV do
  local total, finished = unpack(redis.call('HMGET', k_batch(ARGV[i]), 'total', 'finished_ms'))
  if total and not finished then begin_cancel(ARGV[i], 'pause') end
end
resume_run(run)
-- As any other run from now on: a paused one is kept for ever.
keep_run(run)
return 1
