package fence

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Op is what a record does to the state of its key. It is carried out inside
// Redis, together with the comparison, so that no two writers can work on the
// same old state. The zero Op is Keep. Ops are values: they may be copied and
// used again.
type Op struct {
	code byte // of the script
	args []string
	err  error
}

// Keep leaves the state as it is. The record counts as applied, so that its
// output is sent again when it is read again. The result holds the state.
func Keep() Op { return Op{code: 'k'} }

// Set replaces the state, whatever it was: for a state that is a function of
// the record alone. Where it depends on what was there, use CompareAndSet, or
// Claim.Update, which does it for a batch.
func Set(value []byte) Op { return Op{code: 's', args: []string{string(value)}} }

// Delete removes the state. Its fence stays, so that an older record that is
// read again does not bring the state back.
func Delete() Op { return Op{code: 'd'} }

// CompareAndSet replaces the state when it is exactly base; otherwise the whole
// batch fails with ErrConflict. A nil base means that there is none, a nil value
// removes the state; an empty one is a state.
func CompareAndSet(base, value []byte) Op {
	args := []string{"0", "", "0", ""}
	if base != nil {
		args[0], args[1] = "1", string(base)
	}
	if value != nil {
		args[2], args[3] = "1", string(value)
	}
	return Op{code: 'c', args: args}
}

// Add adds to a state that is an integer in decimal; a missing one is 0. The
// state after is the sum. Beyond the range of int64 the record is bad: overflow.
func Add(n int64) Op { return Op{code: 'i', args: []string{strconv.FormatInt(n, 10)}} }

// AddFloat adds to a state that is a number; a missing one is 0. Sums are those
// of float64, and therefore not for money.
func AddFloat(x float64) Op { return withFloat('f', x) }

// Sum adds to a state that is a sum of integers with the number of them. See
// DecodeSum.
func Sum(n int64) Op { return Op{code: 'I', args: []string{strconv.FormatInt(n, 10)}} }

// SumFloat is Sum for float64.
func SumFloat(x float64) Op { return withFloat('F', x) }

// Min keeps the smaller of the state and n; a missing state becomes n.
func Min(n int64) Op { return Op{code: 'm', args: []string{strconv.FormatInt(n, 10)}} }

// Max keeps the larger of the state and n; a missing state becomes n.
func Max(n int64) Op { return Op{code: 'M', args: []string{strconv.FormatInt(n, 10)}} }

// MinFloat is Min for float64.
func MinFloat(x float64) Op { return withFloat('n', x) }

// MaxFloat is Max for float64.
func MaxFloat(x float64) Op { return withFloat('N', x) }

// formatFloat writes a number as the script does: with the fewest digits from 15
// on that are this number, and an exponent without a plus.
func formatFloat(x float64) string {
	text := ""
	for digits := 15; digits <= 17; digits++ {
		// The verb of package fmt rounds and trims as that of C does.
		text = strings.Replace(fmt.Sprintf("%.*g", digits, x), "+", "", 1)
		if y, err := strconv.ParseFloat(text, 64); err == nil && y == x {
			break
		}
	}
	return text
}

func withFloat(code byte, x float64) Op {
	op := Op{code: code, args: []string{formatFloat(x)}}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		op.err = fmt.Errorf("%v is no number to calculate with", x)
	}
	return op
}

// MaxList is the largest number of elements that Append keeps.
const MaxList = 10_000

// MaxArgs is the largest number of members of SetAdd and SetRemove, and of
// arguments of Reduce.
const MaxArgs = 10_000

// Append adds an element at the end of a list of which the newest limit
// elements are kept. The list is read and written whole, and the pending window
// holds it once for each record, so it is for short ones. See DecodeList.
func Append(element []byte, limit int) Op {
	op := Op{code: 'a', args: []string{strconv.Itoa(limit), string(element)}}
	if limit < 1 || limit > MaxList {
		op.err = fmt.Errorf("a list of %d elements: use 1 to %d", limit, MaxList)
	}
	return op
}

// SetAdd adds members to a set of any size. The state after is not the set but
// what changed; see DecodeSet.
func SetAdd(members ...string) Op { return Op{code: '+', args: append([]string(nil), members...)} }

// SetRemove removes members from a set. See SetAdd.
func SetRemove(members ...string) Op { return Op{code: '-', args: append([]string(nil), members...)} }

// Reduce calls a reducer of Options.Reducers with arguments.
func Reduce(name string, args ...string) Op {
	return Op{code: 'r', args: append([]string{name}, args...)}
}

// String is for logs and tests: it does not show values.
func (o Op) String() string {
	if o.code == 0 {
		o.code = 'k'
	}
	return opNames[o.code]
}

var opNames = map[byte]string{'k': "keep", 's': "set", 'd': "delete", 'c': "compare-and-set", 'i': "add", 'f': "add-float",
	'I': "sum", 'F': "sum-float", 'm': "min", 'M': "max", 'n': "min-float", 'N': "max-float", 'a': "append",
	'+': "set-add", '-': "set-remove", 'r': "reduce"}

func (o *Op) size() int {
	n := 0
	for _, a := range o.args {
		n += len(a)
	}
	return n
}
