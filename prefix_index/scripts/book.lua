-- Notes load that a worker is about to get.
-- ARGV: field, worker id, tokens, time to live (ms)
local ttl = tonumber(ARGV[4])
local entry = string.format('%.0f:%.0f:%s', tonumber(ARGV[3]), now_ms() + ttl, ARGV[2])
redis.call('HSET', BOOKINGS, ARGV[1], entry)
-- The key lives as long as its longest entry, so that nothing is left when all routers are gone.
if redis.call('PTTL', BOOKINGS) < ttl then
  redis.call('PEXPIRE', BOOKINGS, ttl)
end
return 1
