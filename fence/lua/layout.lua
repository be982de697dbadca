-- Stores the layout of a fence unless there is one, and returns it.
-- KEYS  layout
-- ARGV  format version, slots (0 for those that are stored), partitioner,
--       slots to begin with (0 to begin nothing: the reply is then empty)
local call = redis.call
local m = call('HMGET', KEYS[1], 'v', 'slots', 'partitioner')
if not m[1] and ARGV[4] == '0' then
	return {'OK', '', '', ''}
end
if not m[1] then
	local slots = ARGV[2] ~= '0' and ARGV[2] or ARGV[4]
	call('HSET', KEYS[1], 'v', ARGV[1], 'slots', slots, 'partitioner', ARGV[3])
	m = {ARGV[1], slots, ARGV[3]}
end
return {'OK', m[1], m[2], m[3]}
