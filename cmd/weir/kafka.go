package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/cmd/weir/internal/clientconf"
)

// kafkaFlags say which Kafka to connect to, and how.
type kafkaFlags struct {
	cmd     *cobra.Command
	config  string
	brokers []string
	options []kgo.Opt // after complete; includes the brokers
}

func (f *kafkaFlags) add(cmd *cobra.Command, brokers string) {
	f.cmd = cmd
	fs := cmd.Flags()
	fs.StringSliceVar(&f.brokers, "brokers", nil, brokers)
	fs.StringVar(&f.config, "command-config", "", "`file` of client settings for TLS and SASL, as for Kafka's own tools")
	must(cmd.RegisterFlagCompletionFunc("brokers", cobra.NoFileCompletions))
	must(cmd.MarkFlagFilename("command-config"))
}

// complete checks the flags and reads the file. Brokers of the file count unless
// --brokers is given.
func (f *kafkaFlags) complete() error {
	var errs []error
	for _, b := range f.brokers {
		if err := checkAddress(b, false); err != nil {
			errs = append(errs, fmt.Errorf("--brokers: %w", err))
		}
	}
	var c clientconf.Config
	if f.cmd.Flags().Changed("command-config") {
		if f.config == "" {
			errs = append(errs, errors.New("--command-config is empty: name a file, or leave it out"))
		} else if got, err := clientconf.Read(f.config); err != nil {
			errs = append(errs, fmt.Errorf("--command-config: %w", err))
		} else {
			c = got
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(f.brokers) == 0 {
		f.brokers = c.Brokers
	}
	if len(c.Unused) > 0 {
		fmt.Fprintf(f.cmd.ErrOrStderr(), "%s: not used: %s\n", f.config, strings.Join(c.Unused, ", "))
	}
	f.options = append([]kgo.Opt{kgo.SeedBrokers(f.brokers...)}, c.Options...)
	return nil
}
