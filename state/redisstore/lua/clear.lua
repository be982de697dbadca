-- Switches a view to a new, empty generation and puts the old one on the list
-- of what is to be removed.
-- KEYS  meta, the new order index (if any), the new buckets
-- ARGV  old token, new token, generation, bucket count, points,
--       whether there is an index, format version
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen', 'buckets', 'trash')
local token = m[1] or ''
if token ~= ARGV[1] then
	if token == ARGV[2] then
		call('HSET', KEYS[1], 'token', token) -- a write, for WAIT to wait for
		return {'OK', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
	end
	return {'FENCED', token}
end
local first = 2
if ARGV[6] == '1' then
	call('ZADD', KEYS[2], '0', '\255')
	first = 3
end
for i = first, #KEYS do
	call('HSET', KEYS[i], '\255', '')
end
local trash = m[4] or ''
if m[2] and m[3] then
	if trash ~= '' then
		trash = trash .. ' '
	end
	trash = trash .. m[2] .. ':' .. m[3]
end
call('HDEL', KEYS[1], 'over', 'stage', 'staged')
call('HSET', KEYS[1], 'v', ARGV[7], 'gen', ARGV[3], 'buckets', ARGV[4], 'points', ARGV[5], 'trash', trash, 'token', ARGV[2])
return {'OK', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
