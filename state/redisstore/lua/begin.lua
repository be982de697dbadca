-- Starts to stage a batch that is larger than one chunk.
-- KEYS  meta, all overlay buckets
-- ARGV  old token, generation, stage id, whether what an earlier stage left may go
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen', 'over', 'stage')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[2] or m[3] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
if m[4] == ARGV[3] then
	return {'OK'} -- its reply was lost
end
if m[4] and ARGV[4] ~= '1' then
	return {'LEFTOVER'}
end
call('UNLINK', unpack(KEYS, 2))
call('HSET', KEYS[1], 'stage', ARGV[3], 'staged', '0')
return {'OK'}
