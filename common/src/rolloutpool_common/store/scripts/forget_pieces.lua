-- Take away what a batch noted of the tokenizers that made its ids; its deletion calls this, perhaps twice.
-- ARGV: batch, owner, seconds that an unused vocabulary is kept, then sha256 of each tokenizer.
local batch, owner = ARGV[1], ARGV[2]
for i = 4, #ARGV do
  local sha = ARGV[i]
  redis.call('SREM', k_made_with(sha, owner), batch)
  if redis.call('EXISTS', k_made_with(sha, owner)) == 0 then redis.call('SREM', k_made_with(sha), owner) end
  if redis.call('EXISTS', k_made_with(sha)) == 0 and redis.call('TTL', k_pieces(sha)) == -1 then
    redis.call('EXPIRE', k_pieces(sha), ARGV[3])
  end
end
return 1
