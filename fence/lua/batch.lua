-- Applies a batch of one partition to the states of one slot: compares, works
-- everything out, and only then writes. So an error on the way, and a script
-- that is killed, leave nothing half-written.
--
-- KEYS  meta, window, the keys of the states
-- ARGV  owner, expected position, new position, prefix of the fences
--       (partition, count, lineage and a space behind each), partition count,
--       room in the window (number of records; '' when none is kept), time to
--       live in ms (0 for none), committed offset, whether a key may be on any
--       partition, most segments to prune, and the records in one of two forms:
--       - name of the segment, and for each record what its state is to be;
--         record i is of the key KEYS[i + 2]. It is for records that leave what
--         the caller knows, whose offsets rise
--       - '', and for each record: index of its key, offset, operation (and + when
--         an output follows), number of arguments where the operation does not
--         tell it, arguments, output
--
-- A state is a string: partition, count, lineage and offset of the last record
-- of its key, and its kind unless it is plain, with spaces between; then, if
-- there is a state, a line feed and the state. The window is a list: each call has
-- put its segment behind the others, which is its name and the states that its
-- records have left. The name is first offset, last offset and number of records,
-- with a - between.
--
-- Lua hashes each string as a whole, so a long one costs much: texts are passed
-- on as they came, and are not put together.
local function reducers()
	local REDUCERS = {}
--REDUCERS--
	return REDUCERS
end
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
local prefix = ARGV[4]
local room = tonumber(ARGV[6]) -- nil when no window is kept
local ttl = ARGV[7]

-- stored returns what is stored, by the place of the key behind those of the
-- partition.
local function stored()
	return #KEYS > 2 and call('MGET', unpack(KEYS, 3)) or {}
end

-- fences returns the same as far as the short way looks at it. length is that of
-- one of the states, and from some length on it is cheaper to ask for the beginning
-- of each. (What is empty is no state.)
local function fences(length)
	if length < 600 then
		return stored()
	end
	local list, last = {}, #prefix + 19 -- digits, and the line feed
	for i = 3, #KEYS do
		local text = call('GETRANGE', KEYS[i], 0, last)
		list[i - 2] = text ~= '' and text
	end
	return list
end

-- put sets keys to texts, which take turns in a list of w elements. A server does
-- many in several commands sooner than in one.
local function put(writes, w)
	for from = 1, w, 64 do
		call('MSET', unpack(writes, from, math.min(from + 63, w)))
	end
end

-- finish writes what is to be written last.
local function finish()
	local gone = 0
	for _ = 1, tonumber(ARGV[10]) do
		local last, n = match(call('LINDEX', KEYS[2], gone) or '', '^%d+%-(%d+)%-(%d+)$')
		if not last or not less(last, committed) then
			break
		end
		gone = gone + 1 + tonumber(n)
	end
	if gone > 0 then
		call('LTRIM', KEYS[2], gone, -1)
	end
	call('HSET', KEYS[1], 'pos', less(pos, ARGV[3]) and ARGV[3] or pos, 'committed', committed)
end

-- The short way, for most calls: all records are new, the states before them are
-- plain ones of this partition and lineage or there are none, and those behind
-- them are in the arguments. (An offset behind the position is larger than that
-- of any state of this partition and lineage.)
local A, at = ARGV, 12 -- the records in the long form
local segment = ARGV[11]
if segment ~= '' then
	local n = #ARGV - at + 1
	local short = not less(match(segment, '^%d+'), pos)
	if short then
		local list = fences(#ARGV[at])
		local plain, none = '^' .. prefix .. '%d+\n', '^' .. prefix .. '%d+$'
		for i = 1, n do
			local text = list[i]
			if text and not find(text, plain) and not find(text, none) then
				short = false
				break
			end
		end
	end
	if short then
		if room then
			if n > room then
				return {'FULL'}
			end
			-- From here on nothing can fail but the server. The first write is one
			-- that a server without memory refuses: it looks at no other.
			call('RPUSH', KEYS[2], unpack(ARGV, 11))
		end
		if ttl == '0' then
			local writes, w = {}, 0
			for i = 1, n do
				writes[w + 1], writes[w + 2] = KEYS[i + 2], ARGV[at + i - 1]
				w = w + 2
			end
			put(writes, w)
		else
			for i = 1, n do
				call('SET', KEYS[i + 2], ARGV[at + i - 1], 'PX', ttl)
			end
		end
		finish()
		return {'OK', string.rep('a', n), room and segment or '', {}, ''}
	end
	-- The records in the long form. A key may have been there twice.
	local index, w = {}, 0
	A = {}
	for i = 1, n do
		local key, text = KEYS[i + 2], ARGV[at + i - 1]
		index[key] = index[key] or format('%d', i + 2)
		local offset, behind = match(text, '^(%d+)()', #prefix + 1)
		A[w + 1], A[w + 2] = index[key], offset
		if behind > #text then
			A[w + 3] = 'd'
			w = w + 3
		else
			A[w + 3], A[w + 4] = 's', sub(text, behind + 1)
			w = w + 4
		end
	end
	at = 1
end

local since = tonumber(meta[5] or '1')
local partition = match(prefix, '^%d+')
local lineage = match(prefix, '(%d+) $')
local count = tonumber(ARGV[5])
local loose = ARGV[9] == '1'
local REDUCERS = reducers()
local raws = stored()

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

-- exact says that s is an integer as it is written here, and that Lua's numbers
-- hold it.
local function exact(s)
	return #s <= 15 and (s == '0' or find(s, '^%-?[1-9]%d*$'))
end

-- add returns the sum of two integers, or nil and what is wrong.
local function add(a, b)
	if exact(a) and exact(b) then
		return format('%.0f', tonumber(a) + tonumber(b))
	end
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
-- written: T, the text, or false while it is still to be made, members M with their
-- number SIZE, and FRESH, which says that no member that is stored counts. (To set
-- a field of a table to nil costs as much as to set it to something, so what is nil
-- already is left alone.)
local V, R, O, COUNT, KIND, AT, T, M, SIZE, FRESH = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local mine = '^' .. prefix .. '(%d+)()'

-- readable says whether what is stored can be read.
local function readable(i)
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
-- arguments. It changes the state and returns true, and if the window is to keep
-- something in place of the state its kind and value; or it returns nil and what
-- is wrong.
local function become(i, v, kind)
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
	return become(i, v, nil)
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

function ops.s(i, a) return become(i, A[a], nil) end
function ops.d(i) return plain(i, nil) end
function ops.k() return true end

function ops.c(i, a)
	local base
	if A[a] == '1' then
		base = A[a + 1]
	end
	if V[i] ~= base then
		return nil, 'CONFLICT'
	end
	return plain(i, A[a + 2] == '1' and A[a + 3] or nil)
end

function ops.i(i, a)
	local v = typed(i, nil, '0')
	if not v then
		return nil, 'the state is no plain value'
	end
	local r, wrong = add(v, A[a])
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
	local r, wrong = plus(v, A[a])
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
	total, wrong = adder(total, A[a])
	if not total then
		return nil, wrong
	end
	n, wrong = add(n, '1')
	if not n then
		return nil, wrong
	end
	return become(i, total .. ' ' .. n, 'sum')
end

function ops.I(i, a) return counted(i, a, add) end
function ops.F(i, a) return counted(i, a, plus) end

local function extreme(i, a, before)
	local v = typed(i, nil, A[a])
	if not v then
		return nil, 'the state is no plain value'
	end
	local take, wrong = before(A[a], v)
	if take == nil then
		return nil, wrong
	end
	return plain(i, take and A[a] or v)
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
	list[#list + 1] = A[a + 1]
	local out = {}
	for j = math.max(1, #list - tonumber(A[a]) + 1), #list do
		out[#out + 1] = #list[j] .. ':' .. list[j]
	end
	return become(i, table.concat(out), 'list')
end

local function change(i, a, n, there)
	if V[i] ~= nil and R[i] ~= 'set' then
		return nil, 'the state is no set'
	end
	local m = members(i)
	local changed = 0
	for j = a, a + n - 1 do
		local member = A[j]
		if has(i, member) ~= there then
			changed = changed + 1
		end
		m[member] = there
	end
	SIZE[i] = SIZE[i] + (there and changed or -changed)
	V[i], R[i] = format('%d', SIZE[i]), 'set'
	return true, 'change', changed .. ' ' .. V[i]
end

ops['+'] = function(i, a, n) return change(i, a, n, true) end
ops['-'] = function(i, a, n) return change(i, a, n, false) end

function ops.r(i, a, n)
	local name, version, oldest = A[a], A[a + 1], A[a + 2]
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
		args[#args + 1] = A[j]
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
		become(i, v, 'reducer ' .. name .. ' ' .. version)
	end
	if output then
		return true, 'output', output
	end
	return true
end

-- arity is the number of arguments; the others are told.
local arity = {s = 1, d = 0, k = 0, c = 4, i = 1, f = 1, I = 1, F = 1, m = 1, M = 1, n = 1, N = 1, a = 2}

-- What the window holds for an offset: "o" and an output, "s" and the state,
-- or "n" and nothing when there was no state. What this call adds are offsets and texts. seen is what is
-- known of the others.
local P, offsets, texts = 0, {}, {}
local seen, segments, used = {}, nil, {}

-- written is a state as it is stored.
local function written(offset, kind, value)
	if value == nil then
		return prefix .. offset
	elseif kind then
		return prefix .. offset .. ' ' .. kind .. '\n' .. value
	end
	return prefix .. offset .. '\n' .. value
end

local function left(text)
	local stop = find(text, '\n', 1, true)
	if not stop then
		return 'n', ''
	end
	local output = match(sub(text, 1, stop - 1), '^%d+ %d+ %d+ %d+ output$')
	return output and 'o' or 's', sub(text, stop + 1)
end

local function damaged(name)
	error('the segment ' .. name .. ' of the window is damaged')
end

-- list returns names, bounds and places of the segments.
local function list()
	local all, from, length = {}, 0, call('LLEN', KEYS[2])
	while from < length do
		local name = call('LINDEX', KEYS[2], from)
		local first, last, n = match(name, '^(%d+)%-(%d+)%-(%d+)$')
		if not first then
			damaged(name)
		end
		local to = from + tonumber(n)
		all[#all + 1] = {name, first, last, from + 1, to}
		from = to + 1
	end
	return all
end

local function open(name, from, to)
	local some = call('LRANGE', KEYS[2], from, to)
	if #some ~= to - from + 1 then
		damaged(name)
	end
	for _, text in ipairs(some) do
		local offset = match(text, '^%d+ %d+ %d+ (%d+)')
		if not offset then
			damaged(name)
		end
		seen[offset] = text
	end
end

local function held(offset)
	if seen[offset] then
		return left(seen[offset])
	end
	for j = P, 1, -1 do
		if offsets[j] == offset then
			return left(texts[j])
		end
	end
	segments = segments or list()
	for _, g in ipairs(segments) do
		if not g.open and not less(offset, g[2]) and not less(g[3], offset) then
			g.open = true
			open(g[1], g[4], g[5])
			used[#used + 1] = g[1]
		end
	end
	if seen[offset] then
		return left(seen[offset])
	end
end

-- The reply: a letter for each record, and of those whose letter is a capital
-- another one and a value, as in the window.
local L, letters, N, kinds, values = 0, {}, 0, {}, {}
local bad, conflict = {'BAD'}, nil

-- Offsets rise, so once one is behind the position all that follow are: they
-- were never applied in this lineage, and cannot be in the window.
local fresh = false
local index = {} -- of a key, by its text
local last = #A
while at <= last do
	local place, offset, op = A[at], A[at + 1], A[at + 2]
	local i = index[place]
	if not i then
		i = tonumber(place)
		index[place] = i
		if not readable(i) then
			return {'CORRUPT', KEYS[i]}
		end
	end
	local a, out = at + 3, #op > 1
	if out then
		op = sub(op, 1, 1)
	end
	local n = arity[op]
	if not n then
		n = tonumber(A[a])
		a = a + 1
	end
	at = a + n + (out and 1 or 0)
	fresh = fresh or not less(offset, pos)
	local o = O[i]
	local again = o and not (#o < #offset or #o == #offset and o < offset)
	local was, kept
	if room and (again or not fresh) and not less(offset, committed) then
		was, kept = held(offset)
	end
	local verdict = 'A'
	if was then
		verdict = 'R'
		N = N + 1
		kinds[N], values[N] = was, kept
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
		local result, kind, value = ops[op](i, a, n)
		if kind == 'CONFLICT' then
			conflict = i
			break
		elseif not result then
			bad[#bad + 1] = format('%d', L)
			bad[#bad + 1] = kind
		else
			if known then
				verdict = verdict == 'A' and 'a' or 'b'
			else
				N = N + 1
				if kind then
					kinds[N], values[N] = kind == 'output' and 'o' or 's', value
				elseif V[i] ~= nil then
					kinds[N], values[N] = 's', V[i]
				else
					kinds[N], values[N] = 'n', ''
				end
			end
			local text = false -- of the state
			if room and (fresh or not less(offset, committed)) then
				P = P + 1
				offsets[P] = offset
				if out then
					texts[P] = written(offset, 'output', A[at - 1])
				elseif kind then
					texts[P] = written(offset, kind, value)
				else
					text = written(offset, R[i], V[i])
					texts[P] = text
				end
			end
			O[i], T[i] = offset, text
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
segment = ''
if P > 0 then
	if P > room then
		return {'FULL'}
	end
	segment = offsets[1] .. '-' .. offsets[P] .. '-' .. format('%d', P)
end

-- A server of a cluster that is handing these keys over to another one refuses
-- those that it does not have. The call does not name the keys of members, so that
-- has to be found out before anything is written.
for i in pairs(T) do
	if FRESH[i] or KIND[i] == 'set' or R[i] == 'set' then
		call('EXISTS', memberKey(i))
	end
end

-- From here on nothing can fail but the server.
if P > 0 then
	call('RPUSH', KEYS[2], segment, unpack(texts))
end
local writes, w = {}, 0
for i, text in pairs(T) do
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
	text = text or written(O[i], R[i], V[i])
	if ttl ~= '0' then
		call('SET', KEYS[i], text, 'PX', ttl)
	else
		writes[w + 1], writes[w + 2] = KEYS[i], text
		w = w + 2
	end
end
put(writes, w)
finish()
return {'OK', table.concat(letters), segment, used, table.concat(kinds), unpack(values)}
