package liveview

import (
	"os"
	"strings"

	"golang.org/x/term"
)

// OptionsFor returns what f, usually os.Stdout, can do. getenv is os.Getenv.
//
// f is a terminal if the system says so and TERM is neither empty nor "dumb". It
// has color unless NO_COLOR is set to anything (https://no-color.org), and
// block characters if LC_ALL, LC_CTYPE or LANG, the first that is set, names
// UTF-8.
func OptionsFor(f *os.File, getenv func(string) string) Options {
	fd := int(f.Fd())
	o := environment(term.IsTerminal(fd), getenv)
	o.Size = func() (width, height int) {
		width, height, err := term.GetSize(fd)
		if err != nil {
			return 0, 0
		}
		return width, height
	}
	return o
}

func environment(terminal bool, getenv func(string) string) Options {
	name := getenv("TERM")
	if !terminal || name == "" || name == "dumb" {
		return Options{}
	}
	o := Options{Terminal: true, Color: getenv("NO_COLOR") == ""}
	for _, key := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(key)); locale != "" {
			o.Unicode = strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
			break
		}
	}
	return o
}
