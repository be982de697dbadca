-- Ends an overlay that has been moved.
-- KEYS  meta, all overlay buckets
-- ARGV  token, overlay
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'over')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[2] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
call('HDEL', KEYS[1], 'over')
call('UNLINK', unpack(KEYS, 2))
return {'OK'}
