package lint

import (
	"bytes"
	"fmt"
	"regexp"
)

// A phrase is text that does not belong into the repository. The patterns are written
// in pieces, so that this file does not contain what it looks for.
type phrase struct {
	pattern *regexp.Regexp
	goOnly  bool
	why     string
}

var phrases = []phrase{
	{
		pattern: regexp.MustCompile(`/wo` + `rk/|/fa` + `rm/|(^|[^\w./])/(ro` + `ot|ho` + `me|Us` + `ers)/\w`),
		why:     "a path that exists on one machine only",
	},
	{
		pattern: regexp.MustCompile(`\.lib` + `rary|fa` + `rm-(be` + `nch|stu` + `dio)|[Ss]ub` + `agent`),
		why:     "a tool of somebody's desk, not a part of the product",
	},
	{
		pattern: regexp.MustCompile(`proxy\.go` + `lang\.org|repo1?\.ma` + `ven|repo\.ma` + `ven\.apache|py` + `pi\.org|registry\.np` + `mjs|deb\.deb` + `ian\.org`),
		why:     "the host of a registry; every tool knows its own, or the mirror that its user has set",
	},
	{
		pattern: regexp.MustCompile(`(^|[^.\w])(TO` + `DO|FIX` + `ME)\b`),
		goOnly:  true,
		why:     "a note of something undone; do it, or open an issue",
	},
}

// checkText searches every text file for the phrases, and scripts for their run bit.
func checkText(files []file) []problem {
	var problems []problem
	for _, f := range files {
		if f.isBinary() {
			continue
		}
		if bytes.HasPrefix(f.data, []byte("#!")) && f.mode&0o111 == 0 {
			problems = append(problems, problem{f.path, "a script without the run bit; run chmod +x on it"})
		}
		number := 0
		for line := range bytes.Lines(f.data) {
			number++
			for _, p := range phrases {
				if p.goOnly && f.ast == nil {
					continue
				}
				if found := p.pattern.Find(line); found != nil {
					problems = append(problems, problem{fmt.Sprintf("%s:%d", f.path, number), fmt.Sprintf("%q: %s", bytes.TrimSpace(found), p.why)})
				}
			}
		}
	}
	return problems
}
