-- Counts the entries of all buckets, or of a range of the order index.
-- KEYS  meta, then the order index or all buckets
-- ARGV  generation, and for a range: from, to
local call = redis.call
if (call('HGET', KEYS[1], 'gen') or '') ~= ARGV[1] then
	return {'LAYOUT', call('HMGET', KEYS[1], 'v', 'gen', 'buckets', 'points', 'over', 'trash')}
end
if ARGV[2] then
	return {'OK', call('ZLEXCOUNT', KEYS[2], ARGV[2], ARGV[3])}
end
local n = 0
for i = 2, #KEYS do
	n = n + call('HLEN', KEYS[i]) - 1
end
return {'OK', n}
