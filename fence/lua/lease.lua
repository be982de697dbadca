-- Takes, prolongs or gives up a lease.
-- KEYS  lease
-- ARGV  holder, time in ms (0 gives it up), whether it is to be prolonged
local call = redis.call
local holder = call('GET', KEYS[1])
if holder and holder ~= ARGV[1] or not holder and ARGV[3] == '1' then
	return {'FENCED', holder or ''}
end
if ARGV[2] == '0' then
	if holder then
		call('DEL', KEYS[1])
	end
else
	call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {'OK'}
