-- Looks a chain up. Reads only.
-- ARGV: chain (names, joined)
-- Reply: needs_sweep, then for each live worker: id, leading blocks, booked tokens, booked requests
local chain = ARGV[1]
local now = now_ms()
local sweep = redis.call('EXISTS', DIRTY)

local rows, row_of_slot, row_of_worker = {}, {}, {}
-- mask[k]: bits 8(k-1)..8(k-1)+7, of live workers that hold every block seen so far
local mask, width = {}, 0
local workers = redis.call('HGETALL', WORKERS)
for i = 1, #workers, 2 do
  local slot, deadline = parse_worker(workers[i + 1])
  if deadline > now then
    local row = {id = workers[i], leading = 0, tokens = 0, requests = 0}
    rows[#rows + 1] = row
    row_of_slot[slot] = row
    row_of_worker[row.id] = row
    local k = math.floor(slot / 8) + 1
    mask[k] = bit.bor(mask[k] or 0, bit.lshift(1, slot % 8))
    width = math.max(width, k)
  else
    sweep = 1
  end
end
for k = 1, width do
  mask[k] = mask[k] or 0
end

-- Drops the workers that lack the block with bitmap `bits`, which follows `done` blocks. False: none is left.
local function narrow(bits, done)
  local alive = false
  for k = 1, width do
    local before = mask[k]
    if before ~= 0 then
      local after = bit.band(before, string.byte(bits, k) or 0)
      local lost = bit.bxor(before, after)
      for b = 0, 7 do
        if bit.band(lost, bit.lshift(1, b)) ~= 0 then
          row_of_slot[8 * (k - 1) + b].leading = done
        end
      end
      mask[k] = after
      alive = alive or after ~= 0
    end
  end
  return alive
end

-- Reads grow, so that a short match costs little and a long one few commands.
local total, done, size = #chain / NAME_BYTES, 0, 32
local alive, last = #rows > 0, nil
while alive and done < total do
  local count = math.min(size, total - done)
  local names = {}
  for i = 1, count do
    local start = (done + i - 1) * NAME_BYTES
    names[i] = string.sub(chain, start + 1, start + NAME_BYTES)
  end
  local bitmaps = redis.call('HMGET', BLOCKS, unpack(names))
  for i = 1, count do
    local bits = bitmaps[i]
    -- Neighbours mostly have the same holders: an equal bitmap cannot narrow further.
    if bits ~= last then
      last = bits
      alive = narrow(bits or '', done + i - 1)
      if not alive then
        break
      end
    end
  end
  done = done + count
  size = math.min(size * 4, MOST_FIELDS)
end
narrow('', total)

for _, entry in ipairs(redis.call('HVALS', BOOKINGS)) do
  local tokens, deadline, worker = parse_booking(entry)
  local row = row_of_worker[worker]
  if deadline <= now then
    sweep = 1
  elseif row then
    row.tokens = row.tokens + tokens
    row.requests = row.requests + 1
  end
end

local reply = {sweep}
for _, row in ipairs(rows) do
  local n = #reply
  reply[n + 1] = row.id
  reply[n + 2] = row.leading
  reply[n + 3] = row.tokens
  reply[n + 4] = row.requests
end
return reply
