-- Begins a new lineage of a partition in one slot. Whoever owned it is fenced.
-- To repeat it changes nothing.
-- KEYS  meta, window
-- ARGV  owner as read before, new owner, format version, partition count, topic
--       id, position, lineage, the oldest lineage whose states count
local call = redis.call
local owner = call('HGET', KEYS[1], 'owner') or ''
if owner == ARGV[2] then
	return {'OK'}
end
if owner ~= ARGV[1] then
	return {'FENCED', owner}
end
call('UNLINK', KEYS[2])
call('HSET', KEYS[1], 'v', ARGV[3], 'owner', ARGV[2], 'count', ARGV[4], 'topic', ARGV[5],
	'pos', ARGV[6], 'committed', ARGV[6], 'begin', ARGV[6], 'lineage', ARGV[7], 'since', ARGV[8], 'doubt', '')
return {'OK'}
