-- Read the next batches of a list, newest first, that pass a filter.
-- ARGV: owner ('' for all), whether of protocol v1 (1) or not (0), ms and batch of the cursor ('' and '' for the start), how
-- many to answer at most, how many to look at at most, state ('' | running | complete), run as the batch's hash has it ('' for
-- all), then label, value, ... that it must have.
-- Answer: now_ms, ms and batch to go on from (both '' at the end of the list), batches ({{batch, field, value, ...}, ...}).
--
-- It looks at a bounded number of batches, so that Redis answers others soon; the caller goes on where it ended.
local owner, list = ARGV[1], nil
list = k_batches(ARGV[2] == '1' or nil, owner ~= '' and owner or nil)
local ms, after, limit, most, state, run = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local first = 0
if after ~= '' then
  local rank = redis.call('ZREVRANK', list, after)
  if rank then
    first = rank + 1
  else
    -- Deleted since. The older ones, and those of the same millisecond that come after it in this order.
    first = redis.call('ZCOUNT', list, '(' .. ms, '+inf')
    for _, same in ipairs(redis.call('ZRANGEBYSCORE', list, ms, ms)) do
      if same > after then first = first + 1 end
    end
  end
end
local labels = {}
for i = 9, #ARGV, 2 do labels[#labels + 1] = { ARGV[i], ARGV[i + 1] } end

local function passes(batch)
  local finished, its_run, its_labels, total = unpack(redis.call(
    'HMGET', k_batch(batch), 'finished_ms', 'run', 'labels', 'total'
  ))
  if not total then return false end
  if state == 'running' and finished or state == 'complete' and not finished then return false end
  if run ~= '' and its_run ~= run then return false end
  if #labels > 0 then
    local parsed, named = pcall(cjson.decode, its_labels or '{}')
    if not parsed then return false end
    for _, wanted in ipairs(labels) do
      if named[wanted[1]] ~= wanted[2] then return false end
    end
  end
  return true
end

-- The longest fields, of no use here, and those that may hold secrets.
local hidden = { shared = true, tokenizers = true }
for _, mark in ipairs(MARKS) do hidden[mark] = true end
-- Its turns in the queue are by it, so it is the kernel's as well.
hidden.run = nil
local found, seen, last = {}, 0, nil
local range = redis.call('ZREVRANGE', list, first, first + most - 1)
for _, batch in ipairs(range) do
  seen, last = seen + 1, batch
  if passes(batch) then
    local fields = redis.call('HGETALL', k_batch(batch))
    local kept = { batch }
    for i = 1, #fields, 2 do
      if not hidden[fields[i]] then
        kept[#kept + 1] = fields[i]
        kept[#kept + 1] = fields[i + 1]
      end
    end
    found[#found + 1] = kept
    if #found == limit then break end
  end
end
local more = last and redis.call('ZCARD', list) > first + seen
return {
  'now_ms', str(now_ms()),
  'ms', more and redis.call('ZSCORE', list, last) or '',
  'batch', more and last or '',
  'batches', found,
}
