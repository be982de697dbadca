-- Removes a view: the token and everything that leads to the data at once;
-- the data are then on the list of what is to be removed. The generation is
-- compared, so that a call that arrives late cannot drop a later view.
-- KEYS  meta
-- ARGV  generation
local call = redis.call
local kind = call('TYPE', KEYS[1])['ok']
if kind ~= 'hash' and kind ~= 'none' then
	-- Somebody overwrote it: nothing leads to the data any more.
	call('UNLINK', KEYS[1])
	return {'OK', ''}
end
local m = call('HMGET', KEYS[1], 'gen', 'buckets', 'trash')
if (m[1] or '') ~= ARGV[1] then
	return {'LAYOUT', m[1] or ''}
end
local trash = m[3] or ''
if m[1] and m[2] then
	if trash ~= '' then
		trash = trash .. ' '
	end
	trash = trash .. m[1] .. ':' .. m[2]
end
call('DEL', KEYS[1])
if trash ~= '' then
	call('HSET', KEYS[1], 'trash', trash)
end
return {'OK', trash}
