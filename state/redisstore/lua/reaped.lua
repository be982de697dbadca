-- Takes generations whose keys are gone off the list of what is to be removed.
-- KEYS  meta
-- ARGV  generation:buckets, ...
local call = redis.call
local trash = call('HGET', KEYS[1], 'trash')
if not trash then
	return {'OK'}
end
local gone = {}
for i = 1, #ARGV do
	gone[ARGV[i]] = true
end
local left = {}
for entry in string.gmatch(trash, '[^ ]+') do
	if not gone[entry] then
		left[#left + 1] = entry
	end
end
if #left == 0 then
	call('HDEL', KEYS[1], 'trash')
else
	call('HSET', KEYS[1], 'trash', table.concat(left, ' '))
end
return {'OK'}
