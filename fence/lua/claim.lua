-- Makes somebody the owner of a partition in one slot, by compare-and-swap. To
-- repeat it changes nothing.
-- KEYS  meta, window
-- ARGV  owner as read before, new owner, format version, partition count, topic
--       id or '', committed offset, offset of the group that is in doubt or '',
--       and for a slot that has nothing yet: position, begin, lineage, since
local call = redis.call
local function less(a, b)
	return #a < #b or #a == #b and a < b
end
local m = call('HMGET', KEYS[1], 'owner', 'pos', 'topic', 'committed')
local owner = m[1] or ''
if owner ~= ARGV[1] and owner ~= ARGV[2] then
	return {'FENCED', owner}
end
if not m[2] then
	call('HSET', KEYS[1], 'pos', ARGV[8], 'begin', ARGV[9], 'lineage', ARGV[10], 'since', ARGV[11])
end
local committed = m[4] or '0'
if less(committed, ARGV[6]) then
	committed = ARGV[6]
end
call('HSET', KEYS[1], 'v', ARGV[3], 'owner', ARGV[2], 'count', ARGV[4], 'committed', committed, 'doubt', ARGV[7])
if ARGV[5] ~= '' and (m[3] or '') == '' then
	call('HSET', KEYS[1], 'topic', ARGV[5])
end
local old, held = {}, {}
for _, segment in ipairs(call('HKEYS', KEYS[2])) do
	local last = string.match(segment, '^%d+%-(%d+)%-%d+$')
	if last and less(last, committed) then
		old[#old + 1] = segment
	else
		held[#held + 1] = segment
	end
end
for from = 1, #old, 4000 do
	call('HDEL', KEYS[2], unpack(old, from, math.min(from + 3999, #old)))
end
return {'OK', call('HGET', KEYS[1], 'pos'), held}
