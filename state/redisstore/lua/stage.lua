-- Stages one chunk in the overlay. Nobody reads it before the flip. The order
-- index is a superset of what is there, so it takes the new keys already.
-- KEYS  meta, order index, an overlay bucket per group
-- ARGV  old token, stage id, number of the chunk, then per group: ordered,
--       puts, deletes, and that many pairs of field and '+' and value, and of
--       field and '-'
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'stage', 'staged')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
local chunk = tonumber(ARGV[3])
if m[2] ~= ARGV[2] or tonumber(m[3]) < chunk - 1 then
	return {'STAGE'}
end
if tonumber(m[3]) >= chunk then
	return {'OK'} -- its reply was lost
end
local p = 4
for i = 3, #KEYS do
	local ordered, puts, dels = ARGV[p] == '1', tonumber(ARGV[p + 1]), tonumber(ARGV[p + 2])
	p = p + 3
	local last = p + 2 * (puts + dels) - 1
	call('HSET', KEYS[i], '\255', '', unpack(ARGV, p, last))
	if ordered and puts > 0 then
		local z = {}
		for j = p, p + 2 * puts - 1, 2 do
			z[#z + 1] = '0'
			z[#z + 1] = ARGV[j]
		end
		call('ZADD', KEYS[2], unpack(z))
	end
	p = last + 1
end
call('HSET', KEYS[1], 'staged', ARGV[3])
return {'OK'}
