-- Gives a worker a lease, a slot and a new epoch; its former registration and its blocks end.
-- ARGV: worker id, epoch, incarnation, lease (ms)
-- Reply: 'ok' or 'fenced' (a newer incarnation has a live lease), needs_sweep
local worker, epoch, incarnation, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = now_ms()
retire_expired(now)
local entry = redis.call('HGET', WORKERS, worker)
if entry then
  local slot, _, registered = parse_worker(entry)
  if registered > incarnation then
    return {'fenced', needs_sweep(now)}
  end
  retire(worker, slot)
end
local taken = {}
for _, live in ipairs(redis.call('HVALS', WORKERS)) do
  taken[parse_worker(live)] = true
end
for _, field in ipairs(redis.call('HKEYS', DIRTY)) do
  taken[tonumber(field) or -1] = true
end
local slot = 0
while taken[slot] do
  slot = slot + 1
end
redis.call('HSET', WORKERS, worker, worker_entry(slot, now + lease, incarnation, epoch))
return {'ok', needs_sweep(now)}
