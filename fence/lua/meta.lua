-- Reads what is stored for a partition in one slot.
-- KEYS  meta
-- ARGV  fields
local reply = redis.call('HMGET', KEYS[1], unpack(ARGV))
for i = 1, #ARGV do
	reply[i] = reply[i] or ''
end
return {'OK', unpack(reply, 1, #ARGV)}
