-- Say whether a worker is to write a tokenizer's vocabulary; put off the expiry of one that is there.
-- ARGV: sha256 of the tokenizer, worker, seconds that an unused one is kept, seconds that a worker has for writing it.
-- Answer: `kept`; `write`: this worker is to write it; `awaited`: another one writes it.
local sha, key = ARGV[1], k_pieces(ARGV[1])
if redis.call('EXISTS', key) == 1 then
  -- One that kept rollouts used does not expire.
  if redis.call('TTL', key) >= 0 then redis.call('EXPIRE', key, ARGV[3]) end
  return 'kept'
end
if redis.call('SET', P .. 'pieces_writer:' .. sha, ARGV[2], 'NX', 'EX', ARGV[4]) then return 'write' end
return redis.call('GET', P .. 'pieces_writer:' .. sha) == ARGV[2] and 'write' or 'awaited'
