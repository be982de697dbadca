-- Replaces the token by compare-and-swap; from no view at all it makes one.
-- KEYS  meta; to make a view also its order index (if any) and its buckets
-- ARGV  old token ('' none), new token, generation, bucket count, points,
--       whether there is an index, format version
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'v', 'gen', 'buckets', 'trash')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
if token == '' then
	local first = 2
	if ARGV[6] == '1' then
		call('ZADD', KEYS[2], '0', '\255')
		first = 3
	end
	for i = first, #KEYS do
		call('HSET', KEYS[i], '\255', '')
	end
	if m[3] and m[4] then
		-- Somebody removed the token: what it belonged to goes as well.
		local trash = m[3] .. ':' .. m[4]
		if m[5] then
			trash = m[5] .. ' ' .. trash
		end
		call('HSET', KEYS[1], 'trash', trash)
	end
	call('HDEL', KEYS[1], 'over', 'stage', 'staged')
	call('HSET', KEYS[1], 'v', ARGV[7], 'gen', ARGV[3], 'buckets', ARGV[4], 'points', ARGV[5], 'token', ARGV[2])
elseif m[2] == ARGV[7] then
	call('HSET', KEYS[1], 'token', ARGV[2])
end
-- A view of another format is left as it is; the reply tells its version.
return {'OK', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
