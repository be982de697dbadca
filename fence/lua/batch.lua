-- Applies a batch of one partition to the states of one slot: compares, works
-- everything out, and only then writes. So an error on the way, and a script
-- that is killed, leave nothing half-written.
--
-- KEYS  meta, window, the keys of the states
-- ARGV  owner, expected position, new position, prefix of the fences
--       (partition, count, lineage and a space behind each), partition count,
--       room in the window (number of records; '' when none is kept), time to
--       live in ms (0 for none), committed offset, whether a key may be on any
--       partition, number of segments to prune, these segments, and for each
--       record: index of its key, offset, operation (and + when an output
--       follows), number of arguments where the operation does not tell it,
--       arguments, output
--
-- A state is a string: partition, count, lineage and offset of the last record
-- of its key, and its kind unless it is plain, with spaces between; then, if
-- there is a state, a line feed and the state. A segment of the window is what a
-- call wrote: first offset, last offset and number of records, with a - between,
-- and for each record its offset, a space, the length, a colon and the value.
local REDUCERS = {}
--REDUCERS--
local KEYS, ARGV = KEYS, ARGV
local call = redis.call
local sub, byte, match, find, format = string.sub, string.byte, string.match, string.find, string.format
local tonumber, tostring, protect = tonumber, tostring, pcall

-- Offsets are decimal strings: Lua's numbers end at 2^53.
local function less(a, b)
	return #a < #b or #a == #b and a < b
end

local meta = call('HMGET', KEYS[1], 'owner', 'pos', 'committed', 'begin', 'since')
local pos = meta[2] or ''
if meta[1] ~= ARGV[1] then
	return {'FENCED', meta[1] or '', pos}
end
if less(pos, ARGV[2]) then
	return {'REGRESSED', meta[1], pos}
end
local committed, begin = meta[3] or '0', meta[4] or '0'
if less(committed, ARGV[8]) then
	committed = ARGV[8]
end
local since = tonumber(meta[5] or '1')
local prefix = ARGV[4]
local partition = match(prefix, '^%d+')
local lineage = match(prefix, '(%d+) $')
local count = tonumber(ARGV[5])
local windowed = ARGV[6] ~= ''
local ttl = ARGV[7]
local loose = ARGV[9] == '1'
local FIRST = 11 -- of the segments to prune
local pruned = tonumber(ARGV[10])

-- Integers are decimal strings in the range of int64. Those of 15 digits and
-- less are exact as Lua's numbers.
local function integer(s)
	local sign, digits = match(s, '^(%-?)(%d+)$')
	if not sign then
		return nil
	end
	digits = match(digits, '^0*(%d+)$')
	if #digits > 19 or #digits == 19 and digits > (sign == '-' and '9223372036854775808' or '9223372036854775807') then
		return nil
	end
	if digits == '0' then
		sign = ''
	end
	return sign, digits
end

local STEP, BASE = 12, 1e12

-- sum adds digits, difference subtracts the smaller digits b from a.
local function sum(a, b)
	local out, carry = '', 0
	while #a > 0 or #b > 0 or carry > 0 do
		local s = (tonumber(sub(a, -STEP)) or 0) + (tonumber(sub(b, -STEP)) or 0) + carry
		carry = 0
		if s >= BASE then
			carry, s = 1, s - BASE
		end
		out = format('%012.0f', s) .. out
		a, b = sub(a, 1, -STEP - 1), sub(b, 1, -STEP - 1)
	end
	return out
end

local function difference(a, b)
	local out, borrow = '', 0
	while #a > 0 do
		local d = tonumber(sub(a, -STEP)) - (tonumber(sub(b, -STEP)) or 0) - borrow
		borrow = 0
		if d < 0 then
			borrow, d = 1, d + BASE
		end
		out = format('%012.0f', d) .. out
		a, b = sub(a, 1, -STEP - 1), sub(b, 1, -STEP - 1)
	end
	return out
end

-- add returns the sum of two integers, or nil and what is wrong.
local function add(a, b)
	local as, ad = integer(a)
	local bs, bd = integer(b)
	if not as or not bs then
		return nil, 'not an integer'
	end
	if #ad <= 15 and #bd <= 15 then
		return format('%.0f', tonumber(as .. ad) + tonumber(bs .. bd))
	end
	local sign, digits = as, nil
	if as == bs then
		digits = sum(ad, bd)
	elseif less(ad, bd) then
		sign, digits = bs, difference(bd, ad)
	else
		digits = difference(ad, bd)
	end
	digits = match(digits, '^0*(%d+)$')
	local s, d = integer(sign .. digits)
	if not s then
		return nil, 'overflow'
	end
	return s .. d
end

local function smaller(a, b)
	local as, ad = integer(a)
	local bs, bd = integer(b)
	if not as or not bs then
		return nil, 'not an integer'
	end
	if as ~= bs then
		return as == '-'
	end
	if as == '-' then
		return less(bd, ad)
	end
	return less(ad, bd)
end

local function float(s)
	local whole, rest = match(s, '^([+-]?%d+)([eE]?[+-]?%d*)$')
	if whole then
		s = whole .. '.0' .. rest -- other Luas read no exponent without a point
	end
	local x = match(s, '^[%d%.eE+-]+$') and tonumber(s)
	if not x or x ~= x or x == 1 / 0 or x == -1 / 0 then
		return nil
	end
	return x
end

local function plus(a, b)
	local x, y = float(a), float(b)
	if not x or not y then
		return nil, 'not a number'
	end
	local s = x + y
	if s ~= s or s == 1 / 0 or s == -1 / 0 then
		return nil, 'overflow'
	end
	-- The shortest text that is this number, and an exponent without a plus.
	for digits = 15, 16 do
		local short = string.gsub(format('%.' .. digits .. 'g', s), '%+', '')
		if float(short) == s then
			return short
		end
	end
	return (string.gsub(format('%.17g', s), '%+', ''))
end

local head = match(KEYS[1], '^.-}:')

-- stale says that the state of another partition is of a lineage that does not
-- count any more. It matters where a key may be on any partition: else the
-- records that made the state cannot come again.
local others = {}

local function stale(p, l)
	local oldest = others[p]
	if not oldest then
		oldest = tonumber(call('HGET', head .. 'p' .. p, 'since') or '0')
		others[p] = oldest
	end
	return tonumber(l) < oldest
end

-- What is known of the state behind KEYS[i], in a table for each fact, which is
-- cheaper than a table for each state: value V (nil when there is none), its
-- kind R, offset O of the last record of this partition and lineage; COUNT is
-- set when the last one was of another partition. Then what is stored: KIND, and
-- AT, where the value begins while it is still to be taken out; and what is to be
-- written: DIRTY, members M with their number SIZE, and FRESH, which says that no
-- member that is stored counts. (To set a field of a table to nil costs as much as
-- to set it to something, so what is nil already is left alone.)
local V, R, O, COUNT, KIND, AT, DIRTY, M, SIZE, FRESH = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local raws = #KEYS > 2 and call('MGET', unpack(KEYS, 3)) or {}
local mine = '^' .. prefix .. '(%d+)()'

-- load says whether what is stored can be read.
local function load(i)
	local raw = raws[i - 2]
	if not raw then
		return true
	end
	local stop, counts, kind = nil, true, nil
	local offset, behind = match(raw, mine)
	if offset then
		O[i] = offset
		local c = byte(raw, behind)
		if c == 10 then
			AT[i] = behind + 1
			return true
		elseif not c then
			return true
		elseif c ~= 32 then
			return false
		end
		stop = find(raw, '\n', behind, true)
		kind = sub(raw, behind + 1, stop and stop - 1)
	else
		stop = find(raw, '\n', 1, true)
		local p, n, l, o, rest = match(sub(raw, 1, stop and stop - 1), '^(%d+) (%d+) (%d+) (%d+)(.*)$')
		if not p then
			return false
		end
		if rest ~= '' then
			kind = sub(rest, 2)
		end
		if p ~= partition then
			if loose and stale(p, l) then
				counts = false
			else
				COUNT[i] = tonumber(n)
			end
		elseif l == lineage then
			O[i] = o -- only the number of partitions has changed
		elseif tonumber(l) < since then
			counts = false
		end
	end
	if kind then
		KIND[i] = kind
	end
	if counts then
		if kind then
			R[i] = kind
		end
		if stop then
			AT[i] = stop + 1
		end
	end
	return true
end

-- Members of a set are a key of their own, so that a record touches only the
-- members that it names.
local function memberKey(i)
	return head .. 'm' .. sub(KEYS[i], #head + 2)
end

local function members(i)
	if not M[i] then
		M[i] = {}
		if R[i] == 'set' then
			SIZE[i] = tonumber(V[i])
		else
			SIZE[i], FRESH[i] = 0, true
		end
	end
	return M[i]
end

local function has(i, member)
	local known = M[i][member]
	if known ~= nil then
		return known
	elseif FRESH[i] then
		return false
	end
	return call('SISMEMBER', memberKey(i), member) == 1
end

-- packed lists: length, a colon and the bytes of each element.
local function unpacked(v)
	local list, at = {}, 1
	while at <= #v do
		local n, from = match(v, '^(%d+):()', at)
		if not n then
			return nil
		end
		n = tonumber(n)
		list[#list + 1] = sub(v, from, from + n - 1)
		at = from + n
	end
	return list
end

-- An operation gets the index of the state, and the index and number of its
-- arguments. It changes the state and returns true, or what the window is to
-- keep in place of the state; or it returns nil and what is wrong.
local function put(i, v, kind)
	if v ~= nil or V[i] then
		V[i] = v
	end
	if kind or R[i] then
		R[i] = kind
	end
	if M[i] then
		M[i] = nil
	end
	if AT[i] then
		AT[i] = nil
	end
	return true
end

local function plain(i, v)
	return put(i, v, nil)
end

-- typed returns the value of a state of a kind, or a value to begin with.
local function typed(i, kind, initial)
	if V[i] == nil then
		return initial
	end
	if R[i] ~= kind then
		return nil
	end
	return V[i]
end

local ops = {}

function ops.s(i, a) return put(i, ARGV[a], nil) end
function ops.d(i) return plain(i, nil) end
function ops.k() return true end

function ops.c(i, a)
	local base
	if ARGV[a] == '1' then
		base = ARGV[a + 1]
	end
	if V[i] ~= base then
		return nil, 'CONFLICT'
	end
	return plain(i, ARGV[a + 2] == '1' and ARGV[a + 3] or nil)
end

function ops.i(i, a)
	local v = typed(i, nil, '0')
	if not v then
		return nil, 'the state is no plain value'
	end
	local r, wrong = add(v, ARGV[a])
	if not r then
		return nil, wrong
	end
	return plain(i, r)
end

function ops.f(i, a)
	local v = typed(i, nil, '0')
	if not v then
		return nil, 'the state is no plain value'
	end
	local r, wrong = plus(v, ARGV[a])
	if not r then
		return nil, wrong
	end
	return plain(i, r)
end

local function counted(i, a, adder)
	local v = typed(i, 'sum', '0 0')
	if not v then
		return nil, 'the state is no sum and count'
	end
	local total, n = match(v, '^(%S+) (%S+)$')
	if not total then
		return nil, 'the state is no sum and count'
	end
	local wrong
	total, wrong = adder(total, ARGV[a])
	if not total then
		return nil, wrong
	end
	n, wrong = add(n, '1')
	if not n then
		return nil, wrong
	end
	return put(i, total .. ' ' .. n, 'sum')
end

function ops.I(i, a) return counted(i, a, add) end
function ops.F(i, a) return counted(i, a, plus) end

local function extreme(i, a, before)
	local v = typed(i, nil, ARGV[a])
	if not v then
		return nil, 'the state is no plain value'
	end
	local take, wrong = before(ARGV[a], v)
	if take == nil then
		return nil, wrong
	end
	return plain(i, take and ARGV[a] or v)
end

local function smallerFloat(a, b)
	local x, y = float(a), float(b)
	if not x or not y then
		return nil, 'not a number'
	end
	return x < y
end

function ops.m(i, a) return extreme(i, a, smaller) end
function ops.M(i, a) return extreme(i, a, function(x, y) return smaller(y, x) end) end
function ops.n(i, a) return extreme(i, a, smallerFloat) end
function ops.N(i, a) return extreme(i, a, function(x, y) return smallerFloat(y, x) end) end

function ops.a(i, a)
	local v = typed(i, 'list', '')
	local list = v and unpacked(v)
	if not list then
		return nil, 'the state is no list'
	end
	list[#list + 1] = ARGV[a + 1]
	local out = {}
	for j = math.max(1, #list - tonumber(ARGV[a]) + 1), #list do
		out[#out + 1] = #list[j] .. ':' .. list[j]
	end
	return put(i, table.concat(out), 'list')
end

local function change(i, a, n, there)
	if V[i] ~= nil and R[i] ~= 'set' then
		return nil, 'the state is no set'
	end
	local m = members(i)
	local changed = 0
	for j = a, a + n - 1 do
		local member = ARGV[j]
		if has(i, member) ~= there then
			changed = changed + 1
		end
		m[member] = there
	end
	SIZE[i] = SIZE[i] + (there and changed or -changed)
	V[i], R[i] = format('%d', SIZE[i]), 'set'
	return 's' .. changed .. ' ' .. V[i]
end

ops['+'] = function(i, a, n) return change(i, a, n, true) end
ops['-'] = function(i, a, n) return change(i, a, n, false) end

function ops.r(i, a, n)
	local name, version, oldest = ARGV[a], ARGV[a + 1], ARGV[a + 2]
	local f = REDUCERS[name]
	if not f then
		return nil, 'no such reducer'
	end
	if V[i] ~= nil then
		local by, at = match(R[i] or '', '^reducer (%S+) (%d+)$')
		if by ~= name then
			return nil, 'the state was not made by the reducer'
		end
		at = tonumber(at)
		if at > tonumber(version) then
			return nil, 'the state was made by version ' .. format('%d', at) .. ' of the reducer'
		end
		if at < tonumber(oldest) then
			return nil, 'the state was made by version ' .. format('%d', at) .. ' of the reducer, which this one does not read'
		end
	end
	local args = {}
	for j = a + 3, a + n - 1 do
		args[#args + 1] = ARGV[j]
	end
	local ok, v, output = protect(f, V[i], args)
	if not ok then
		return nil, 'the reducer failed: ' .. tostring(type(v) == 'table' and v.err or v)
	end
	if v ~= nil and type(v) ~= 'string' or output ~= nil and type(output) ~= 'string' then
		return nil, 'the reducer failed: it must return strings, and nil for no state'
	end
	if v == nil then
		plain(i, nil)
	else
		put(i, v, 'reducer ' .. name .. ' ' .. version)
	end
	if output then
		return 'o' .. output
	end
	return true
end

-- arity is the number of arguments; the others are told.
local arity = {s = 1, d = 0, k = 0, c = 4, i = 1, f = 1, I = 1, F = 1, m = 1, M = 1, n = 1, N = 1, a = 2}

-- What the window holds for an offset: "o" and an output, "s" and the state,
-- or "n" for no state. What this call adds are the parts of its segment, four for
-- a record: offset, length, letter, value. seen is what is known of the others.
local P, parts, lengths = 0, {}, {}
local seen, segments, used = {}, nil, {}

local function held(offset)
	if seen[offset] then
		return seen[offset]
	end
	for j = P - 3, 1, -4 do
		if parts[j] == offset then
			return parts[j + 2] .. parts[j + 3]
		end
	end
	if not segments then
		segments = {}
		for _, name in ipairs(call('HKEYS', KEYS[2])) do
			local first, last = match(name, '^(%d+)%-(%d+)%-%d+$')
			-- None of this call is before this offset or behind the new position.
			if first and less(first, ARGV[3]) and not less(last, offset) then
				segments[#segments + 1] = {name, first, last}
			end
		end
	end
	for _, g in ipairs(segments) do
		if not g.open and not less(offset, g[2]) and not less(g[3], offset) then
			g.open = true
			local text = call('HGET', KEYS[2], g[1])
			local at = 1
			while at <= #text do
				local o, n, from = match(text, '^(%d+) (%d+):()', at)
				if not o then
					error('the segment ' .. g[1] .. ' of the window is damaged')
				end
				at = from + tonumber(n)
				seen[o] = sub(text, from, at - 1)
			end
			used[#used + 1] = g[1]
		end
	end
	return seen[offset]
end

-- The reply: a letter for each record, and the values of those whose letter is
-- a capital.
local L, letters, values = 0, {}, {}
local bad, conflict = {'BAD'}, nil

-- Offsets rise, so once one is behind the position all that follow are: they
-- were never applied in this lineage, and cannot be in the window.
local fresh = false
local index = {} -- of a key, by its text
local at, last = FIRST + pruned, #ARGV
while at <= last do
	local text, offset, op = ARGV[at], ARGV[at + 1], ARGV[at + 2]
	local i = index[text]
	if not i then
		i = tonumber(text)
		index[text] = i
		if not load(i) then
			return {'CORRUPT', KEYS[i]}
		end
	end
	local a, out = at + 3, #op > 1
	if out then
		op = sub(op, 1, 1)
	end
	local n = arity[op]
	if not n then
		n = tonumber(ARGV[a])
		a = a + 1
	end
	at = a + n + (out and 1 or 0)
	fresh = fresh or not less(offset, pos)
	local o = O[i]
	local again = o and not (#o < #offset or #o == #offset and o < offset)
	local kept = windowed and (again or not fresh) and not less(offset, committed) and held(offset)
	local verdict = 'A'
	if kept then
		verdict = 'R'
		values[#values + 1] = kept
	elseif again or not fresh and less(offset, begin) then
		verdict = 's'
	elseif COUNT[i] then
		if COUNT[i] > count then
			verdict = 'd'
		elseif fresh then
			verdict = 'B'
		else
			verdict = 's'
		end
	end
	if verdict == 'A' or verdict == 'B' then
		local known = op == 's' or op == 'c' or op == 'd' -- to the caller
		if AT[i] and (not known or op == 'c') then
			V[i], AT[i] = sub(raws[i - 2], AT[i]), nil
		end
		local result, wrong = ops[op](i, a, n)
		if wrong == 'CONFLICT' then
			conflict = i
			break
		elseif not result then
			bad[#bad + 1] = format('%d', L)
			bad[#bad + 1] = wrong
		else
			local letter, value = 'n', ''
			if result ~= true then
				letter, value = sub(result, 1, 1), sub(result, 2)
			elseif V[i] ~= nil then
				letter, value = 's', V[i]
			end
			if known then
				verdict = verdict == 'A' and 'a' or 'b'
			else
				values[#values + 1] = letter .. value
			end
			if windowed and (fresh or not less(offset, committed)) then
				if out then
					letter, value = 'o', ARGV[at - 1]
				end
				local size = #value + 1
				local length = lengths[size]
				if not length then
					length = format(' %d:', size)
					lengths[size] = length
				end
				parts[P + 1], parts[P + 2], parts[P + 3], parts[P + 4] = offset, length, letter, value
				P = P + 4
			end
			O[i], DIRTY[i] = offset, true
			if COUNT[i] then
				COUNT[i] = nil
			end
		end
	end
	L = L + 1
	letters[L] = verdict
end
if conflict then
	return {'CONFLICT', format('%d', conflict)}
end
if #bad > 1 then
	return bad
end
local segment = ''
if P > 0 then
	if P / 4 > tonumber(ARGV[6]) then
		return {'FULL'}
	end
	segment = parts[1] .. '-' .. parts[P - 3] .. '-' .. format('%d', P / 4)
end

-- From here on nothing can fail but the server. The first write is one that a
-- server without memory refuses: it looks only at the first of a script.
if P > 0 then
	call('HSET', KEYS[2], segment, table.concat(parts))
end
local writes, n = {}, 0
for i in pairs(DIRTY) do
	if FRESH[i] or KIND[i] == 'set' and R[i] ~= 'set' then
		call('UNLINK', memberKey(i))
	end
	if R[i] == 'set' then
		for member, there in pairs(M[i] or {}) do
			if there then
				call('SADD', memberKey(i), member)
			else
				call('SREM', memberKey(i), member)
			end
		end
		if ttl ~= '0' then
			call('PEXPIRE', memberKey(i), ttl)
		else
			call('PERSIST', memberKey(i))
		end
	end
	local text
	if V[i] == nil then
		text = prefix .. O[i]
	elseif R[i] then
		text = prefix .. O[i] .. ' ' .. R[i] .. '\n' .. V[i]
	else
		text = prefix .. O[i] .. '\n' .. V[i]
	end
	if ttl ~= '0' then
		call('SET', KEYS[i], text, 'PX', ttl)
	else
		writes[n + 1], writes[n + 2] = KEYS[i], text
		n = n + 2
	end
end
if n > 0 then
	call('MSET', unpack(writes, 1, n))
end
for from = FIRST, FIRST + pruned - 1, 4000 do
	call('HDEL', KEYS[2], unpack(ARGV, from, math.min(from + 3999, FIRST + pruned - 1)))
end
call('HSET', KEYS[1], 'pos', less(pos, ARGV[3]) and ARGV[3] or pos, 'committed', committed)
return {'OK', table.concat(letters), segment, used, unpack(values)}
