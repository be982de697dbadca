package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// Defaults and bounds of Options.
const (
	DefaultNamespace   = "weir"
	DefaultBuckets     = 8
	DefaultTimeout     = redisconn.DefaultTimeout
	DefaultDialTimeout = redisconn.DefaultDialTimeout
	DefaultWaitTimeout = redisconn.DefaultWaitTimeout

	// MaxBuckets is the largest number of buckets of a view.
	MaxBuckets = 1024
)

// Sentinel is how the sentinels are asked for the primary.
type Sentinel = redisconn.Sentinel

// Options say which Redis is used and how. The zero value of a field means
// its default. Options never show a password when they are printed or logged.
type Options struct {
	// Addresses are host:port, or paths of unix sockets, which begin with a
	// slash. Several are nodes of a cluster, or sentinels. Required.
	Addresses []string
	// Cluster says that the addresses belong to a Redis Cluster. A single
	// address is found out about; several without Sentinel are a cluster.
	Cluster bool
	// Sentinel is set when the addresses are those of sentinels.
	Sentinel *Sentinel

	// Username is the ACL user. Defaults to the default user.
	Username string
	// Password is the secret of the user; empty for none.
	Password string `json:"-"`
	// TLS is used when it is not nil. An empty ServerName means that of the
	// address.
	TLS *tls.Config `json:"-"`
	// Database is the number of the database; a cluster knows only 0.
	Database int
	// ClientName is shown by CLIENT LIST. Defaults to "weir".
	ClientName string

	// Namespace begins every key: letters, digits, and any of ". _ - / :".
	// Defaults to DefaultNamespace.
	Namespace string
	// Buckets is the number of hashes that a view made from now on spreads its
	// keys over; what exists keeps its own until it is rebuilt. Choose it so
	// that a hash has at most some 50,000 keys: more slow down the move of a
	// slot to another node and nothing else. More buckets cost processor time
	// of Redis with each Apply. Defaults to DefaultBuckets, at most MaxBuckets.
	Buckets int
	// PointLookups are names of stores whose keys are kept without order: they
	// take about 40 % less memory and less time to write, and ranges of them
	// are refused with ErrUnordered. Like Buckets it counts for views made
	// from now on.
	PointLookups []string
	// Unordered keeps no store in order.
	Unordered bool

	// Timeout is how long one call may take before the connection is given up
	// and the call fails with state.ErrUnavailable. Defaults to DefaultTimeout.
	Timeout time.Duration
	// DialTimeout is how long it may take to connect. Defaults to
	// DefaultDialTimeout.
	DialTimeout time.Duration
	// WaitReplicas is how many replicas have to confirm each change of a view
	// before it counts as done. What a failover then forgets is less, and not
	// nothing: a replica that did not confirm may be promoted. Defaults to 0.
	WaitReplicas int
	// WaitTimeout is how long to wait for them, after which the call fails
	// with ErrReplicas. It must be shorter than Timeout. Defaults to
	// DefaultWaitTimeout.
	WaitTimeout time.Duration

	// ScriptsOnly writes all batches by scripts. By default those that touch no
	// ordered store go as transactions (WATCH, MULTI, EXEC), which take a third
	// less processor time of the server, and a connection for each view, of 64 at
	// most. It is for servers that take these commands and do not watch; where
	// they are refused, scripts are used anyway.
	ScriptsOnly bool

	// Check says what Open does about a server that is set up in a way that
	// loses or endangers state. Defaults to CheckRefuse.
	Check CheckMode
	// Logger gets what the check found and when the server goes and comes.
	// Nil discards.
	Logger *slog.Logger

	// hooks are for tests.
	hooks redisconn.Hooks
}

// conn are the options of the connection.
func (o *Options) conn() redisconn.Options {
	return redisconn.Options{
		Addresses: o.Addresses, Cluster: o.Cluster, Sentinel: o.Sentinel,
		Username: o.Username, Password: o.Password, TLS: o.TLS, Database: o.Database, ClientName: o.ClientName,
		Namespace: o.Namespace,
		Timeout:   o.Timeout, DialTimeout: o.DialTimeout, WaitReplicas: o.WaitReplicas, WaitTimeout: o.WaitTimeout,
		Check: o.Check, Logger: o.Logger,
		Errors: redisconn.Errors{Unavailable: state.ErrUnavailable, Full: state.ErrFull, Corrupt: state.ErrCorrupt,
			Replicas: ErrReplicas, Unsuitable: ErrUnsuitable},
		Docs:   "docs/formats/redis.md",
		Forgot: "it is replayed from the changelogs",
		Hooks:  o.hooks,
	}
}

// take is the reverse of conn.
func (o *Options) take(c *redisconn.Options) {
	o.Addresses, o.Cluster, o.Sentinel = c.Addresses, c.Cluster, c.Sentinel
	o.Username, o.Password, o.TLS, o.Database, o.ClientName = c.Username, c.Password, c.TLS, c.Database, c.ClientName
	o.Namespace = c.Namespace
	o.Timeout, o.DialTimeout, o.WaitReplicas, o.WaitTimeout = c.Timeout, c.DialTimeout, c.WaitReplicas, c.WaitTimeout
	o.Check, o.Logger = c.Check, c.Logger
}

// String describes the options without their secrets.
func (o Options) String() string { return o.conn().String() }

// GoString is String: not even %#v shows a secret.
func (o Options) GoString() string { return o.String() }

// LogValue implements slog.LogValuer.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

// withDefaults checks the options and fills in what is not set.
func (o Options) withDefaults() (Options, error) {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Buckets == 0 {
		o.Buckets = DefaultBuckets
	}
	c, err := o.conn().WithDefaults("redisstore")
	o.take(&c)
	errs := []error{err}
	if o.Buckets < 1 || o.Buckets > MaxBuckets {
		errs = append(errs, fmt.Errorf("redisstore: Buckets is %d: use 1 to %d", o.Buckets, MaxBuckets))
	}
	for _, s := range o.PointLookups {
		if s == "" || len(s) > maxStoreName {
			errs = append(errs, fmt.Errorf("redisstore: PointLookups: %q is no store name", s))
		}
	}
	return o, errors.Join(errs...)
}

// maxStoreName is the longest name of a store: it is part of a topic's name,
// which has at most 249 bytes.
const maxStoreName = 249

// ParseURL returns the options that a URL stands for:
//
//	redis://user:password@host:6379/0
//	rediss://host                            with TLS
//	unix:///run/redis.sock?db=0
//	redis+cluster://host1:6379,host2:6379    (rediss+cluster with TLS)
//	redis+sentinel://host1,host2/master/0    (rediss+sentinel with TLS)
//
// User, password and path may be %-encoded. Parameters: db, namespace,
// buckets, point_lookups (names with commas between them), unordered,
// scripts_only, timeout, dial_timeout, wait_replicas, wait_timeout, client_name, check (refuse,
// strict, warn, off), skip_verify (TLS without proof of the server's identity),
// sentinel_user, sentinel_password. An unknown one is an error. No error shows
// the URL, which may hold a password.
func ParseURL(s string) (Options, error) {
	var o Options
	c, err := redisconn.ParseURL(s, func(name, v string) (known bool, err error) {
		switch name {
		case "buckets":
			o.Buckets, err = strconv.Atoi(v)
		case "point_lookups":
			o.PointLookups = strings.Split(v, ",")
		case "unordered":
			o.Unordered, err = strconv.ParseBool(v)
		case "scripts_only":
			o.ScriptsOnly, err = strconv.ParseBool(v)
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return Options{}, fmt.Errorf("redisstore: URL: %w", err)
	}
	o.take(&c)
	return o, nil
}
