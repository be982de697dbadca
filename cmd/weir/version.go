package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what `weir version` says. The names of its members in JSON are
// stable.
type version struct {
	Version  string `json:"version"`            // of the module; "(devel)" from a working copy
	Revision string `json:"revision,omitempty"` // of version control
	Time     string `json:"time,omitempty"`     // of that revision
	Modified bool   `json:"modified"`           // there were changes on top of it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long:  "Print the version of the module, the revision that it was built from, and the version of Go.",
		Example: `  weir version
  weir version --json | jq -r .revision`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = &debug.BuildInfo{}
			}
			v := versionOf(info)
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			return v.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func versionOf(info *debug.BuildInfo) version {
	v := version{Version: info.Main.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v version) print(w io.Writer) error {
	text := "weir " + v.Version + "\n"
	if v.Revision != "" {
		text += "revision " + v.Revision
		if v.Time != "" {
			text += " of " + v.Time
		}
		if v.Modified {
			text += ", modified"
		}
		text += "\n"
	}
	text += v.Go + " " + v.Platform + "\n"
	_, err := fmt.Fprint(w, text)
	return err
}
