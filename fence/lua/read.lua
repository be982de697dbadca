-- Reads states for the owner of a partition, and only for him.
-- KEYS  meta, states
-- ARGV  owner, expected position, partition, whether a key may be on any
--       partition
-- The reply holds the states, and a letter for each: "-" when the last record of
-- the key was of this lineage or of another partition, "f" when it was of an
-- earlier lineage, "s" when the state does not count any more either.
local call = redis.call
local match, head = string.match, string.match(KEYS[1], '^.-}:')
local m = call('HMGET', KEYS[1], 'owner', 'pos', 'lineage', 'since')
local pos = m[2] or ''
if m[1] ~= ARGV[1] then
	return {'FENCED', m[1] or '', pos}
end
if #pos < #ARGV[2] or #pos == #ARGV[2] and pos < ARGV[2] then
	return {'REGRESSED', m[1], pos}
end
local letters, states = {}, {}
if #KEYS > 1 then
	states = call('MGET', unpack(KEYS, 2))
end
for i = 1, #KEYS - 1 do
	local p, l = match(states[i] or '', '^(%d+) %d+ (%d+) %d+')
	letters[i] = '-'
	if p == ARGV[3] then
		if l ~= m[3] then
			letters[i] = tonumber(l) < tonumber(m[4] or '1') and 's' or 'f'
		end
	elseif p and ARGV[4] == '1' then
		local oldest = call('HGET', head .. 'p' .. p, 'since')
		if oldest and tonumber(l) < tonumber(oldest) then
			letters[i] = 's'
		end
	end
end
return {'OK', table.concat(letters), states}
