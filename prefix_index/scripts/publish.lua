-- Renews a lease and changes what its worker holds.
-- ARGV: worker id, epoch, lease (ms), stored names (joined), evicted names (joined)
-- Reply: 'ok' or 'lost' (nothing was changed: the lease has ended or another epoch has begun), needs_sweep
local worker, epoch, lease, stored, evicted = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now = now_ms()
local entry = redis.call('HGET', WORKERS, worker)
local slot, deadline, incarnation, registered
if entry then
  slot, deadline, incarnation, registered = parse_worker(entry)
end
if registered ~= epoch or deadline <= now then
  return {'lost', needs_sweep(now)}
end
redis.call('HSET', WORKERS, worker, worker_entry(slot, now + lease, incarnation, epoch))

local at, flag = math.floor(slot / 8) + 1, bit.lshift(1, slot % 8)

local function with_flag(bits)
  bits = bits .. string.rep('\0', at - #bits)
  local byte = string.char(bit.bor(string.byte(bits, at), flag))
  return string.sub(bits, 1, at - 1) .. byte .. string.sub(bits, at + 1)
end

local function without_flag(bits)
  if #bits < at then
    return bits
  end
  local byte = string.char(bit.band(string.byte(bits, at), bit.bnot(flag)))
  return trim(string.sub(bits, 1, at - 1) .. byte .. string.sub(bits, at + 1))
end

local function change(joined, edit)
  local total = #joined / NAME_BYTES
  for first = 0, total - 1, MOST_FIELDS do
    local names = {}
    for i = first, math.min(first + MOST_FIELDS, total) - 1 do
      names[#names + 1] = string.sub(joined, i * NAME_BYTES + 1, (i + 1) * NAME_BYTES)
    end
    local changed = {}
    for i, bits in ipairs(redis.call('HMGET', BLOCKS, unpack(names))) do
      local before = bits or ''
      local after = edit(before)
      if after ~= before then
        changed[names[i]] = after
      end
    end
    write_bitmaps(changed)
  end
end

change(evicted, without_flag)
change(stored, with_flag)
return {'ok', needs_sweep(now)}
