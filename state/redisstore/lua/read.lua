-- Reads values together with the token.
-- KEYS  meta, then the buckets and overlay buckets of the groups
-- ARGV  '1' to compare the token, token, generation, overlay, then per group:
--       number of fields, place of its bucket in KEYS, place of its overlay
--       bucket or 0, and the fields, of which the first is the bucket's mark
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen', 'over')
local token = m[1] or ''
if ARGV[1] == '1' and token ~= ARGV[2] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[3] or (m[3] or '') ~= ARGV[4] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
local out = {'OK', token}
local p = 5
while p <= #ARGV do
	local first, last = p + 3, p + 2 + tonumber(ARGV[p])
	local key, over = KEYS[tonumber(ARGV[p + 1])], tonumber(ARGV[p + 2])
	local values = call('HMGET', key, unpack(ARGV, first, last))
	if not values[1] then
		return {'CORRUPT', key}
	end
	if over > 0 then
		local newer = call('HMGET', KEYS[over], unpack(ARGV, first, last))
		if not newer[1] then
			return {'CORRUPT', KEYS[over]}
		end
		for i = 2, #newer do
			local v = newer[i]
			if v then
				if string.byte(v, 1) == 43 then
					values[i] = string.sub(v, 2)
				else
					values[i] = false
				end
			end
		end
	end
	out[#out + 1] = values
	p = last + 1
end
return out
