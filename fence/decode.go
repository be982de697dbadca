package fence

import (
	"bytes"
	"fmt"
	"strconv"
)

// DecodeInt reads the state of Add, Min and Max. A missing state is 0.
func DecodeInt(state []byte) (int64, error) {
	if len(state) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(state), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("fence: state %q is no integer", state)
	}
	return n, nil
}

// DecodeFloat reads the state of AddFloat, MinFloat and MaxFloat. A missing
// state is 0.
func DecodeFloat(state []byte) (float64, error) {
	if len(state) == 0 {
		return 0, nil
	}
	x, err := strconv.ParseFloat(string(state), 64)
	if err != nil {
		return 0, fmt.Errorf("fence: state %q is no number", state)
	}
	return x, nil
}

// DecodeSum reads the state of Sum: the sum and how many were added. A missing
// state is 0 and 0.
func DecodeSum(state []byte) (sum, count int64, err error) {
	return decodeSum(state, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
}

// DecodeSumFloat reads the state of SumFloat. A missing state is 0 and 0.
func DecodeSumFloat(state []byte) (sum float64, count int64, err error) {
	return decodeSum(state, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func decodeSum[N int64 | float64](state []byte, parse func(string) (N, error)) (sum N, count int64, err error) {
	if len(state) == 0 {
		return 0, 0, nil
	}
	s, c, ok := bytes.Cut(state, []byte(" "))
	if ok {
		if sum, err = parse(string(s)); err == nil {
			count, err = strconv.ParseInt(string(c), 10, 64)
		}
	}
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("fence: state %q is no sum and count", state)
	}
	return sum, count, nil
}

// DecodeList reads the state of Append, the oldest element first. A missing
// state is an empty list. The elements are parts of state.
func DecodeList(state []byte) ([][]byte, error) {
	var list [][]byte
	for rest := state; len(rest) > 0; {
		digits, after, ok := bytes.Cut(rest, []byte(":"))
		n, err := strconv.Atoi(string(digits))
		if !ok || err != nil || n < 0 || n > len(after) {
			return nil, fmt.Errorf("fence: the state is no list at byte %d", len(state)-len(rest))
		}
		list = append(list, after[:n:n])
		rest = after[n:]
	}
	return list, nil
}

// DecodeSet reads what SetAdd and SetRemove leave in a result: how many members
// came or went, and how many there are now.
func DecodeSet(state []byte) (changed, size int64, err error) {
	c, s, ok := bytes.Cut(state, []byte(" "))
	if ok {
		if changed, err = strconv.ParseInt(string(c), 10, 64); err == nil {
			size, err = strconv.ParseInt(string(s), 10, 64)
		}
	}
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("fence: state %q does not come from a change of a set", state)
	}
	return changed, size, nil
}
