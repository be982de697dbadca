-- Moves a bounded part of the overlay to where it belongs. Readers see the
-- same before and after. With discard set it undoes a stage that was given up
-- instead: it takes those keys off the order index that have no value.
-- KEYS  meta, order index, then pairs of overlay bucket and bucket
-- ARGV  token, overlay, whether to discard, whether there is an index, count,
--       then a cursor per pair
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'over', 'stage')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[2] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
local discard, indexed = ARGV[3] == '1', ARGV[4] == '1'
if discard and m[3] ~= 'given up' then
	call('HSET', KEYS[1], 'stage', 'given up') -- refuses chunks that arrive late
end
local out = {'OK'}
for i = 3, #KEYS, 2 do
	if not discard and call('HEXISTS', KEYS[i], '\255') == 0 then
		return {'CORRUPT', KEYS[i]}
	end
	local page = call('HSCAN', KEYS[i], ARGV[6 + (i - 3) / 2], 'COUNT', ARGV[5])
	local list = page[2]
	local puts, dels = {}, {}
	for j = 1, #list, 2 do
		local field, value = list[j], list[j + 1]
		if field == '\255' then
			-- the mark
		elseif string.byte(value, 1) == 43 then
			puts[#puts + 1] = field
			puts[#puts + 1] = string.sub(value, 2)
		else
			dels[#dels + 1] = field
		end
	end
	-- HSCAN may return more than it was asked for; unpack has a limit.
	if discard then
		for j = 1, #puts, 2 do
			if call('HEXISTS', KEYS[i + 1], puts[j]) == 0 then
				call('ZREM', KEYS[2], puts[j])
			end
		end
	else
		for j = 1, #puts, 1000 do
			call('HSET', KEYS[i + 1], unpack(puts, j, math.min(j + 999, #puts)))
		end
		for j = 1, #dels, 1000 do
			local last = math.min(j + 999, #dels)
			call('HDEL', KEYS[i + 1], unpack(dels, j, last))
			if indexed then
				call('ZREM', KEYS[2], unpack(dels, j, last))
			end
		end
	end
	out[#out + 1] = page[1]
end
return out
