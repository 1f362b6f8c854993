-- Forget the names of rollouts that are deleted, but those that later rollouts have taken over.
-- ARGV: owner, then name, uid, ...
for i = 2, #ARGV, 2 do
  local name = k_name(ARGV[1], ARGV[i])
  if redis.call('GET', name) == ARGV[i + 1] then redis.call('UNLINK', name) end
end
return 1
