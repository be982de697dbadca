package fence

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// value is a state outside of Redis: what batch.lua would have made of it.
// Reconcile compares both.
type value struct {
	exists  bool
	v       []byte
	kind    string
	members map[string]bool
	// unknown says that the state depends on records that are gone.
	unknown bool
}

// errNotEvaluated says that an Op depends on an older state that is not known.
var errNotEvaluated = errors.New("the state before is not known")

// evaluate applies an Op as batch.lua does. After an error the value is as
// before.
func (s *value) evaluate(op Op, list []Reducer) error {
	if op.err != nil {
		return op.err
	}
	switch op.code {
	case 's':
		*s = value{exists: true, v: []byte(op.args[0])}
		return nil
	case 'd':
		*s = value{}
		return nil
	case 0, 'k':
		return nil
	}
	if s.unknown {
		return errNotEvaluated
	}
	plain := func(v []byte) { *s = value{exists: true, v: v} }
	switch op.code {
	case 'c':
		if s.exists != (op.args[0] == "1") || s.exists && string(s.v) != op.args[1] {
			return errors.New("the state is not the expected one")
		}
		*s = value{}
		if op.args[2] == "1" {
			plain([]byte(op.args[3]))
		}
	case 'i', 'm', 'M':
		old, err := s.typed("", "0", op.code != 'i', op.args[0])
		if err != nil {
			return err
		}
		a, err1 := strconv.ParseInt(old, 10, 64)
		b, err2 := strconv.ParseInt(op.args[0], 10, 64)
		if err1 != nil || err2 != nil {
			return errors.New("not an integer")
		}
		switch op.code {
		case 'i':
			if a, err = addInt(a, b); err != nil {
				return err
			}
		case 'm':
			a = min(a, b)
		case 'M':
			a = max(a, b)
		}
		plain(strconv.AppendInt(nil, a, 10))
	case 'f':
		old, err := s.typed("", "0", false, "")
		if err != nil {
			return err
		}
		sum, err := addFloat(old, op.args[0])
		if err != nil {
			return err
		}
		plain([]byte(sum))
	case 'n', 'N':
		old, err := s.typed("", "", true, op.args[0])
		if err != nil {
			return err
		}
		a, err1 := strconv.ParseFloat(old, 64)
		b, err2 := strconv.ParseFloat(op.args[0], 64)
		if err1 != nil || err2 != nil {
			return errors.New("not a number")
		}
		// The text is kept, as it came.
		if op.code == 'n' && b < a || op.code == 'N' && a < b {
			old = op.args[0]
		}
		plain([]byte(old))
	case 'I', 'F':
		return s.sum(op)
	case 'a':
		return s.append(op)
	case '+', '-':
		return s.change(op)
	case 'r':
		return s.reduce(op, list)
	default:
		return fmt.Errorf("unknown operation %q", op.code)
	}
	return nil
}

// typed returns the value of a state of a kind, or the value to begin with.
func (s *value) typed(kind, initial string, itself bool, arg string) (string, error) {
	if !s.exists {
		if itself {
			return arg, nil
		}
		return initial, nil
	}
	if s.kind != kind {
		return "", errors.New("the state is of another kind")
	}
	return string(s.v), nil
}

func addInt(a, b int64) (int64, error) {
	if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
		return 0, errors.New("overflow")
	}
	return a + b, nil
}

func addFloat(a, b string) (string, error) {
	x, err1 := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	if err1 != nil || err2 != nil {
		return "", errors.New("not a number")
	}
	sum := x + y
	if math.IsInf(sum, 0) || math.IsNaN(sum) {
		return "", errors.New("overflow")
	}
	return formatFloat(sum), nil
}

func (s *value) sum(op Op) error {
	old, err := s.typed("sum", "0 0", false, "")
	if err != nil {
		return err
	}
	total, count, ok := bytes.Cut([]byte(old), []byte(" "))
	n, err := strconv.ParseInt(string(count), 10, 64)
	if !ok || err != nil {
		return errors.New("the state is no sum and count")
	}
	var sum string
	if op.code == 'I' {
		a, err1 := strconv.ParseInt(string(total), 10, 64)
		b, err2 := strconv.ParseInt(op.args[0], 10, 64)
		if err1 != nil || err2 != nil {
			return errors.New("not an integer")
		}
		if a, err = addInt(a, b); err != nil {
			return err
		}
		sum = strconv.FormatInt(a, 10)
	} else if sum, err = addFloat(string(total), op.args[0]); err != nil {
		return err
	}
	if n, err = addInt(n, 1); err != nil {
		return err
	}
	*s = value{exists: true, kind: "sum", v: fmt.Appendf(nil, "%s %d", sum, n)}
	return nil
}

func (s *value) append(op Op) error {
	old, err := s.typed("list", "", false, "")
	if err != nil {
		return err
	}
	list, err := DecodeList([]byte(old))
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(op.args[0])
	if err != nil {
		return err
	}
	list = append(list, []byte(op.args[1]))
	var v []byte
	for _, e := range list[max(0, len(list)-limit):] {
		v = append(strconv.AppendInt(v, int64(len(e)), 10), ':')
		v = append(v, e...)
	}
	*s = value{exists: true, kind: "list", v: v}
	return nil
}

func (s *value) change(op Op) error {
	if s.exists && s.kind != "set" {
		return errors.New("the state is no set")
	}
	m := maps.Clone(s.members)
	if m == nil {
		m = map[string]bool{}
	}
	for _, member := range op.args {
		if op.code == '+' {
			m[member] = true
		} else {
			delete(m, member)
		}
	}
	*s = value{exists: true, kind: "set", members: m, v: strconv.AppendInt(nil, int64(len(m)), 10)}
	return nil
}

// reduce runs a reducer in another Lua than that of Redis. Both are of version
// 5.1; they differ in how tostring writes large numbers.
func (s *value) reduce(op Op, list []Reducer) error {
	i := slices.IndexFunc(list, func(r Reducer) bool { return r.Name == op.args[0] })
	if i < 0 {
		return fmt.Errorf("reducer %q is not in Options.Reducers", op.args[0])
	}
	r := &list[i]
	if s.exists {
		by, version, ok := strings.Cut(strings.TrimPrefix(s.kind, "reducer "), " ")
		at, err := strconv.Atoi(version)
		oldest := r.Reads
		if oldest == 0 {
			oldest = r.Version
		}
		switch {
		case !ok || err != nil || by != r.Name:
			return errors.New("the state was not made by the reducer")
		case at > r.Version || at < oldest:
			return fmt.Errorf("the state was made by version %d of the reducer", at)
		}
	}
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		l.Push(l.NewFunction(open))
		l.Call(0, 0)
	}
	for _, name := range []string{"dofile", "loadfile", "print"} {
		l.SetGlobal(name, lua.LNil)
	}
	f, err := l.LoadString("local state, args = ...\n" + r.Source)
	if err != nil {
		return fmt.Errorf("the reducer failed: %w", err)
	}
	state := lua.LValue(lua.LNil)
	if s.exists {
		state = lua.LString(s.v)
	}
	args := l.NewTable()
	for _, a := range op.args[1:] {
		args.Append(lua.LString(a))
	}
	l.Push(f)
	l.Push(state)
	l.Push(args)
	if err := l.PCall(2, 1, nil); err != nil {
		return fmt.Errorf("the reducer failed: %w", err)
	}
	switch v := l.Get(-1).(type) {
	case lua.LString:
		*s = value{exists: true, v: []byte(v), kind: "reducer " + r.Name + " " + strconv.Itoa(r.Version)}
	case *lua.LNilType:
		*s = value{}
	default:
		return errors.New("the reducer failed: it must return strings, and nil for no state")
	}
	return nil
}
