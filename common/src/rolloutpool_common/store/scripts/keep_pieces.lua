-- Store a tokenizer's vocabulary, unless one is there.
-- ARGV: sha256 of the tokenizer, vocabulary, most bytes that all vocabularies may take, seconds that an unused one is kept.
-- Answer: 1; 0 where they would take more.
local sha, written = ARGV[1], ARGV[2]
if redis.call('EXISTS', k_pieces(sha)) == 1 then return 1 end
local sizes, used = redis.call('HGETALL', P .. 'pieces'), 0
for i = 1, #sizes, 2 do
  -- Those that have expired still stand in the list of sizes.
  if redis.call('EXISTS', k_pieces(sizes[i])) == 1 then
    used = used + tonumber(sizes[i + 1])
  else
    redis.call('HDEL', P .. 'pieces', sizes[i])
  end
end
if used + #written > tonumber(ARGV[3]) then return 0 end
redis.call('SET', k_pieces(sha), written)
redis.call('HSET', P .. 'pieces', sha, #written)
-- A rollout that used it may have ended before.
if redis.call('EXISTS', k_made_with(sha)) == 0 then redis.call('EXPIRE', k_pieces(sha), ARGV[4]) end
return 1
