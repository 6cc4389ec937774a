-- Ends a worker's registration, if it is still of this epoch.
-- ARGV: worker id, epoch
-- Reply: needs_sweep
local entry = redis.call('HGET', WORKERS, ARGV[1])
if entry then
  local slot, _, _, epoch = parse_worker(entry)
  if epoch == ARGV[2] then
    retire(ARGV[1], slot)
  end
end
return needs_sweep(now_ms())
