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
-- The window: what is committed goes, and the names of the other segments are
-- returned, in their order. One that is none is returned, too, as the last.
local held, at, gone = {}, 0, 0
local length = call('LLEN', KEYS[2])
while at < length do
	local name = call('LINDEX', KEYS[2], at)
	local last, n = string.match(name, '^%d+%-(%d+)%-(%d+)$')
	at = last and at + 1 + tonumber(n) or length
	if last and #held == 0 and less(last, committed) then
		gone = at
	else
		held[#held + 1] = name
	end
end
if gone > 0 then
	call('LTRIM', KEYS[2], gone, -1)
end
return {'OK', call('HGET', KEYS[1], 'pos'), held}
