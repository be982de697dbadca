-- Reads the outbox together with the token.
-- KEYS  meta, outbox
-- ARGV  token, generation, and the slots
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen')
local token = m[1] or ''
if token ~= ARGV[1] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[2] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
return {'OK', call('HMGET', KEYS[2], unpack(ARGV, 3))}
