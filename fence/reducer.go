package fence

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Reducer is a function in Lua that makes a new state of the old one inside
// Redis.
type Reducer struct {
	// Name is what Reduce calls it by: letters, digits, "_" and "-". Required.
	Name string
	// Version is stored with each state that the reducer makes. Raise it with
	// each change of Source or of the form of the state. A state of a later
	// version is not touched: the record is bad, so that old and new instances
	// can run side by side during an update. At least 1.
	Version int
	// Reads is the oldest version whose states the reducer understands.
	// Defaults to Version.
	Reads int
	// Source is the body of a Lua 5.1 function of two arguments: state, the old
	// state as a string or nil, and args, a table of strings. It returns the
	// new state, or nil for none, and if it likes a second string that the
	// pending window keeps in place of the state. It must be a pure function of
	// its arguments: Redis itself (redis, KEYS, ARGV) is out of its reach. An
	// error, or another result, makes the record bad, and nothing is written.
	// Take care with numbers: tostring(1e15) is "1e+15" in Lua, so format
	// them. Required.
	Source string
}

// reducerForm hides what is not for a reducer: it is a guard against accidents
// and not against its author.
const reducerForm = `REDUCERS['%s'] = (function()
local redis, KEYS, ARGV, REDUCERS, _G, getfenv, setfenv, loadstring, load
return function(state, args)
%s
end
end)()
`

var reducerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// reducers checks the reducers and returns the part of the script that
// defines them.
func reducers(list []Reducer) (string, error) {
	var b strings.Builder
	var errs []error
	var names []string
	for _, r := range list {
		switch {
		case !reducerName.MatchString(r.Name):
			errs = append(errs, fmt.Errorf("fence: reducer %q: use 1 to 64 letters, digits, _ and -", r.Name))
		case slices.Contains(names, r.Name):
			errs = append(errs, fmt.Errorf("fence: reducer %q is there twice", r.Name))
		case r.Version < 1:
			errs = append(errs, fmt.Errorf("fence: reducer %q has version %d: begin with 1", r.Name, r.Version))
		case r.Reads < 0 || r.Reads > r.Version:
			errs = append(errs, fmt.Errorf("fence: reducer %q reads from version %d on and is version %d", r.Name, r.Reads, r.Version))
		case strings.TrimSpace(r.Source) == "":
			errs = append(errs, fmt.Errorf("fence: reducer %q has no source", r.Name))
		}
		names = append(names, r.Name)
		fmt.Fprintf(&b, reducerForm, r.Name, r.Source)
	}
	return b.String(), errors.Join(errs...)
}
