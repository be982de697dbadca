-- Makes a staged batch part of the view, all of it at once: from here on the
-- overlay counts before the buckets.
-- KEYS  meta
-- ARGV  old token, new token, generation, stage id, number of chunks, overlay
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen', 'stage', 'staged')
local token = m[1] or ''
if token ~= ARGV[1] then
	if token == ARGV[2] then
		call('HSET', KEYS[1], 'token', token) -- a write, for WAIT to wait for
		return {'DUP'}
	end
	return {'FENCED', token}
end
if m[2] ~= ARGV[3] or m[3] ~= ARGV[4] or m[4] ~= ARGV[5] then
	return {'STAGE'}
end
call('HDEL', KEYS[1], 'stage', 'staged')
call('HSET', KEYS[1], 'over', ARGV[6], 'token', ARGV[2])
return {'OK'}
