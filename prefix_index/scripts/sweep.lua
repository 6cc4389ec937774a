-- One bounded batch of cleaning: ends expired leases and bookings, clears the bits of dirty slots.
-- A pass walks BLOCKS once for all slots that were dirty when it began; slots that become dirty meanwhile
-- wait for the next. The cursor is kept in DIRTY, so that several sweepers share one pass.
-- ARGV: blocks to look at
-- Reply: 1 where more is to do, else 0
local now = now_ms()
retire_expired(now)

local bookings = redis.call('HGETALL', BOOKINGS)
for i = 1, #bookings, 2 do
  local _, deadline = parse_booking(bookings[i + 1])
  if deadline <= now then
    redis.call('HDEL', BOOKINGS, bookings[i])
  end
end

if redis.call('HLEN', WORKERS) == 0 then
  redis.call('UNLINK', BLOCKS, DIRTY)
  return 0
end

local cursor = redis.call('HGET', DIRTY, 'cursor')
local slots = {}
local flat = redis.call('HGETALL', DIRTY)
for i = 1, #flat, 2 do
  if flat[i] ~= 'cursor' and (not cursor or flat[i + 1] == 'sweeping') then
    slots[#slots + 1] = flat[i]
    if not cursor then
      redis.call('HSET', DIRTY, flat[i], 'sweeping')
    end
  end
end
if #slots == 0 then
  return 0
end

local keep, width = {}, 0
for _, field in ipairs(slots) do
  local slot = tonumber(field)
  local k = math.floor(slot / 8) + 1
  keep[k] = bit.band(keep[k] or 255, bit.bnot(bit.lshift(1, slot % 8)))
  width = math.max(width, k)
end

local function without_slots(bits)
  local bytes = {}
  for k = 1, math.min(#bits, width) do
    bytes[k] = string.char(bit.band(string.byte(bits, k), keep[k] or 255))
  end
  return trim(table.concat(bytes) .. string.sub(bits, width + 1))
end

local scanned = redis.call('HSCAN', BLOCKS, cursor or '0', 'COUNT', ARGV[1])
local changed, cleared = {}, {}
for i = 1, #scanned[2], 2 do
  local bits = scanned[2][i + 1]
  if cleared[bits] == nil then
    cleared[bits] = without_slots(bits)
  end
  if cleared[bits] ~= bits then
    changed[scanned[2][i]] = cleared[bits]
  end
end
write_bitmaps(changed)

if scanned[1] == '0' then
  redis.call('HDEL', DIRTY, 'cursor', unpack(slots))
else
  redis.call('HSET', DIRTY, 'cursor', scanned[1])
end
return redis.call('EXISTS', DIRTY)
