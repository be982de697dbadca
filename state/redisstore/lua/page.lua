-- Reads a page of keys in order, together with the token. Some of them may
-- have no value.
-- KEYS  meta, order index
-- ARGV  '1' to compare the token, token, generation, '1' for reverse order,
--       from, to, limit
local call = redis.call
local m = call('HMGET', KEYS[1], 'token', 'gen')
local token = m[1] or ''
if ARGV[1] == '1' and token ~= ARGV[2] then
	return {'FENCED', token}
end
if (m[2] or '') ~= ARGV[3] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
if not call('ZSCORE', KEYS[2], '\255') then
	return {'CORRUPT', KEYS[2]}
end
if ARGV[4] == '1' then
	return {'OK', token, call('ZREVRANGEBYLEX', KEYS[2], ARGV[5], ARGV[6], 'LIMIT', '0', ARGV[7])}
end
return {'OK', token, call('ZRANGEBYLEX', KEYS[2], ARGV[5], ARGV[6], 'LIMIT', '0', ARGV[7])}
