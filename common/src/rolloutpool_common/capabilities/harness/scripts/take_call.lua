-- Take a model call of a session's program, or find the call that it repeats; then have a worker look.
-- ARGV: batch, index, place, digest of the call, its request's id ('' without one), 1 if its client says that it repeats
-- it (else 0), holder ("{address} {start}" of the door, and a number of the connection), calls at the most, calls at once at
-- the most, bytes at the most, earlier calls whose last byte the program has (number and holder of each), the call (JSON), how
-- many of the session's messages and lists of tools the door takes to be stored, then digest and JSON of each of the call's
-- that is not among these.
-- Answer: outcome; with `taken` also n, reply (with its place among the replies in front; '' if there is none yet), and woken
-- (1: an outbox has the session's ticket now).
--   taken      it is call n, a new one or a repetition
--   gone       there is no such rollout
--   over       the session has ended
--   place      the key is of an older place
--   calls, at_once, bytes   it would be more than this limit
--   forgotten  Redis has lost some of what the door takes to be stored: it has to send all of it
--
-- A repetition is an equal call whose earlier one has the same request's id, or which its client says to repeat, or whose
-- earlier connection ended before its last byte was taken. Any other equal call is another one. A call of an older place
-- that nobody has repeated in this one is repeated by the first equal one. The same holder has sent it a moment ago: the
-- answer of this script was lost.
local LONG = 65536
local batch, index, place, digest, request = unpack(ARGV, 1, 5)
local repeats, holder = ARGV[6] == '1', ARGV[7]
local most_calls, most_open, most_bytes = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local heard, record, stored, FIRST_SAID = ARGV[11], ARGV[12], tonumber(ARGV[13]), 14
local uid = batch .. '-' .. index
local key = k_rollout(uid, 'session')
if not is_there(batch, index) then return { 'outcome', 'gone' } end
if is_sampled(uid) then return { 'outcome', 'over' } end
for n, by in string.gmatch(heard, '(%d+) (%S+ %S+ %S+)') do taken_call(key, n, by) end
local now_place, calls, open, bytes, over, asked, replied, reuse = unpack(redis.call(
  'HMGET', key, 'place', 'calls', 'open', 'bytes', 'over', 'asked:' .. digest, 'replied', 'reuse'
))
-- Of a later one Redis has lost that it was taken.
if tonumber(place) < tonumber(now_place or '1') then return { 'outcome', 'place' } end

-- Whether nobody holds the connection of a call any more that was not answered to its end.
local function is_cut(by)
  if by == 'cut' then return true end
  local address, start = string.match(by, '^(%S+) (%S+)')
  return redis.call('GET', k_door(address)) ~= start
end

local function repeated()
  local cut, held, late
  for n in string.gmatch(asked or '', '%d+') do
    local by, id, made = unpack(redis.call('HMGET', key, 'held:' .. n, 'id:' .. n, 'place:' .. n))
    if tonumber(made or '1') < tonumber(place) then
      -- A program that was started again gets the replies of the one before it, one by one; or none of them.
      if reuse ~= '0' then
        -- The ids of a dead program's requests say nothing of this one's.
        redis.call('HDEL', key, 'id:' .. n)
        return n
      end
    elseif by == holder or request ~= '' and id == request then
      return n
    elseif by and is_cut(by) then
      cut = cut or n
    elseif by then
      held = held or n
    else
      late = n
    end
  end
  return cut or repeats and (held or late) or nil
end

local n, reply, news = repeated(), nil, nil
if n then
  reply = redis.call('HGET', k_rollout(uid, 'replies'), n)
  redis.call('HSET', key, 'held:' .. n, holder, 'place:' .. n, place)
else
  if over then return { 'outcome', 'over' } end
  if tonumber(calls or '0') >= most_calls then return { 'outcome', 'calls' } end
  if tonumber(open or '0') >= most_open then return { 'outcome', 'at_once' } end
  local more = string.len(record)
  -- Before the rest of it is looked at: what is refused must not cost Redis much, because it may come again and again.
  if tonumber(bytes or '0') + more > most_bytes then return { 'outcome', 'bytes' } end
  local said = k_rollout(uid, 'said')
  local new = {}
  if redis.call('HLEN', said) < stored then return { 'outcome', 'forgotten' } end
  for i = FIRST_SAID, #ARGV, 2 do
    if redis.call('HEXISTS', said, ARGV[i]) == 0 then
      more = more + string.len(ARGV[i + 1])
      new[#new + 1] = i
    end
  end
  if tonumber(bytes or '0') + more > most_bytes then return { 'outcome', 'bytes' } end
  local digests, texts = {}, {}
  for _, i in ipairs(new) do
    redis.call('HSET', said, ARGV[i], ARGV[i + 1])
    digests[#digests + 1] = ARGV[i]
    texts[#texts + 1] = ARGV[i] .. '\n' .. ARGV[i + 1]
  end
  local call = (replied or '0') .. ' ' .. table.concat(digests, ',') .. ' ' .. record
  n = redis.call('RPUSH', k_rollout(uid, 'calls'), call)
  -- What its worker is told, it need not read. A long call is not told.
  if more < LONG then news = uid .. ' ' .. n .. '\n' .. call .. '\n' .. table.concat(texts, '\n') end
  redis.call(
    'HSET', key, 'calls', n, 'open', tonumber(open or '0') + 1, 'bytes', str(tonumber(bytes or '0') + more),
    'asked:' .. digest, (asked and asked .. ' ' or '') .. n, 'held:' .. n, holder, 'place:' .. n, place
  )
end
if request ~= '' then redis.call('HSETNX', key, 'id:' .. n, request) end
local woken = reply and 0 or wake_session(batch, index, news)
return { 'outcome', 'taken', 'n', tonumber(n), 'reply', reply or '', 'woken', woken }
