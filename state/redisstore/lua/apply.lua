-- Stores one chunk and replaces the token, by compare-and-swap.
-- KEYS  meta, order index, a bucket per group
-- ARGV  old token, new token, generation, overlay, then per group: ordered,
--       puts, deletes, and that many field and value pairs and fields
-- Values are absolute and the token comes last: should a call fail half-way,
-- its repetition repairs what the first one left.
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen', 'over')
local token = m[1] or ''
if token ~= ARGV[1] then
	if token == ARGV[2] then
		call('HSET', KEYS[1], 'token', token) -- a write, for WAIT to wait for
		return {'DUP'}
	end
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[3] or (m[3] or '') ~= ARGV[4] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
local p = 5
for i = 3, #KEYS do
	local ordered, puts, dels = ARGV[p] == '1', tonumber(ARGV[p + 1]), tonumber(ARGV[p + 2])
	p = p + 3
	if puts > 0 then
		local last = p + 2 * puts - 1
		if call('HSET', KEYS[i], unpack(ARGV, p, last)) > 0 and ordered then
			local z = {}
			for j = p, last, 2 do
				z[#z + 1] = '0'
				z[#z + 1] = ARGV[j]
			end
			call('ZADD', KEYS[2], unpack(z))
		end
		p = last + 1
	end
	if dels > 0 then
		local last = p + dels - 1
		if call('HDEL', KEYS[i], unpack(ARGV, p, last)) > 0 and ordered then
			call('ZREM', KEYS[2], unpack(ARGV, p, last))
		end
		p = last + 1
	end
end
call('HSET', KEYS[1], 'token', ARGV[2])
return {'OK'}
