-- Prepended to every script. The keys and the encodings of their values are described in keys.py.
local WORKERS, BLOCKS, DIRTY, BOOKINGS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local NAME_BYTES = 16
-- Most fields of one command: Lua's unpack() is limited by its stack.
local MOST_FIELDS = 512

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function worker_entry(slot, deadline, incarnation, epoch)
  return string.format('%d:%.0f:%s:%s', slot, deadline, incarnation, epoch)
end

-- slot, deadline (ms), incarnation (20 digits, so that strings compare as numbers), epoch
local function parse_worker(entry)
  local slot, deadline, incarnation, epoch = string.match(entry, '^(%d+):(%d+):(%d+):(%x+)$')
  return tonumber(slot), tonumber(deadline), incarnation, epoch
end

-- tokens, deadline (ms), worker id
local function parse_booking(entry)
  local tokens, deadline, worker = string.match(entry, '^(%d+):(%d+):(.*)$')
  return tonumber(tokens), tonumber(deadline), worker
end

-- Ends a registration. Its bits mean nothing from now on; its slot stays taken until they are swept.
local function retire(worker, slot)
  redis.call('HDEL', WORKERS, worker)
  redis.call('HSET', DIRTY, slot, 'waiting')
end

local function retire_expired(now)
  local flat = redis.call('HGETALL', WORKERS)
  for i = 1, #flat, 2 do
    local slot, deadline = parse_worker(flat[i + 1])
    if deadline <= now then
      retire(flat[i], slot)
    end
  end
end

-- 1 where sweep.lua has something to do about workers, else 0.
local function needs_sweep(now)
  if redis.call('EXISTS', DIRTY) == 1 then
    return 1
  end
  for _, entry in ipairs(redis.call('HVALS', WORKERS)) do
    local _, deadline = parse_worker(entry)
    if deadline <= now then
      return 1
    end
  end
  return 0
end

-- A bitmap without trailing zero bytes; '' where no bit is set.
local function trim(bits)
  return (string.gsub(bits, '%z+$', ''))
end

-- Writes many bitmaps of BLOCKS: `changed` maps names to bitmaps, '' removes the name.
local function write_bitmaps(changed)
  local set, removed = {}, {}
  for name, bits in pairs(changed) do
    if bits == '' then
      removed[#removed + 1] = name
    else
      set[#set + 1] = name
      set[#set + 1] = bits
    end
  end
  for i = 1, #set, 2 * MOST_FIELDS do
    redis.call('HSET', BLOCKS, unpack(set, i, math.min(i + 2 * MOST_FIELDS - 1, #set)))
  end
  for i = 1, #removed, MOST_FIELDS do
    redis.call('HDEL', BLOCKS, unpack(removed, i, math.min(i + MOST_FIELDS - 1, #removed)))
  end
end
