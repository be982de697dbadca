// Package redisconn is what packages that keep data in Redis share: the
// connection with its circuit breaker, the calls of scripts, the classes of
// errors, and the check of how a server is set up.
package redisconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Defaults of Options.
const (
	DefaultTimeout     = 2 * time.Second
	DefaultDialTimeout = 2 * time.Second
	DefaultWaitTimeout = 500 * time.Millisecond

	defaultPort         = "6379"
	defaultSentinelPort = "26379"
)

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
	// Required.
	Namespace string

	// Timeout is how long one call may take before the connection is given up
	// and the call fails with Errors.Unavailable. Defaults to DefaultTimeout.
	Timeout time.Duration
	// DialTimeout is how long it may take to connect. Defaults to
	// DefaultDialTimeout.
	DialTimeout time.Duration
	// WaitReplicas is how many replicas have to confirm each write
	// before it counts as done. What a failover then forgets is less, and not
	// nothing: a replica that did not confirm may be promoted. Defaults to 0.
	WaitReplicas int
	// WaitTimeout is how long to wait for them, after which the call fails
	// with Errors.Replicas. It must be shorter than Timeout. Defaults to
	// DefaultWaitTimeout.
	WaitTimeout time.Duration

	// Check says what Open does about a server that is set up in a way that
	// loses or endangers state. Defaults to CheckRefuse.
	Check CheckMode
	// Logger gets what the check found and when the server goes and comes.
	// Nil discards.
	Logger *slog.Logger

	// Errors are what the errors of calls match. Required.
	Errors Errors
	// Docs names the document that lists the rights that a user needs.
	Docs string
	// Expires says that states have an expiry, so that a volatile-* policy of
	// eviction removes them.
	Expires bool
	// Forgot says what becomes of writes that the server forgets, for the
	// findings of the check: "it is replayed from the changelogs".
	Forgot string
	// OnBreaker is called when a breaker opens and when it closes again; it
	// must not wait. Nil ignores it.
	OnBreaker func(key string, open bool)
	// Hooks are for tests.
	Hooks Hooks
}

// Hooks let a test stand between the caller and the server.
type Hooks struct {
	// Before is called with what is about to be sent in one round trip; its
	// error takes the place of the replies.
	Before func(calls []Call) error
	// After is called when the replies have come; its error takes their place.
	After func(calls []Call) error
}

// Sentinel is how the sentinels are asked for the primary.
type Sentinel struct {
	// Master is the name under which the sentinels watch the primary. Required.
	Master string
	// Username and Password are those of the sentinels themselves.
	Username string
	Password string `json:"-"`
}

// String describes the options without their secrets.
func (o Options) String() string {
	kind := "redis"
	switch {
	case o.Sentinel != nil:
		kind = "sentinel " + o.Sentinel.Master
	case o.Cluster || len(o.Addresses) > 1:
		kind = "cluster"
	}
	return fmt.Sprintf("%s at %s, database %d, namespace %q", kind, strings.Join(o.Addresses, ","), o.Database, o.Namespace)
}

// GoString is String: not even %#v shows a secret.
func (o Options) GoString() string { return o.String() }

// LogValue implements slog.LogValuer.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

// String describes the sentinel without its secrets.
func (s Sentinel) String() string { return "sentinel " + s.Master }

// GoString is String.
func (s Sentinel) GoString() string { return s.String() }

// WithDefaults checks the options and fills in what is not set. Complaints
// begin with the name of the package that the options are given to.
func (o Options) WithDefaults(pkg string) (Options, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(pkg+": "+format, args...)) }
	def := func(d *time.Duration, to time.Duration, name string) {
		if *d < 0 {
			bad("%s is negative", name)
		}
		if *d == 0 {
			*d = to
		}
	}
	def(&o.Timeout, DefaultTimeout, "Timeout")
	def(&o.DialTimeout, DefaultDialTimeout, "DialTimeout")
	def(&o.WaitTimeout, DefaultWaitTimeout, "WaitTimeout")
	if o.ClientName == "" {
		o.ClientName = "weir"
	}
	if len(o.Addresses) == 0 {
		bad("no address")
	}
	o.Addresses = slices.Clone(o.Addresses)
	for i, a := range o.Addresses {
		port := defaultPort
		if o.Sentinel != nil {
			port = defaultSentinelPort
		}
		a, err := address(a, port)
		if err != nil {
			bad("%w", err)
		}
		o.Addresses[i] = a
	}
	if i := strings.IndexFunc(o.Namespace, func(r rune) bool { return !isNamespace(r) }); i >= 0 {
		bad("namespace %q: use letters, digits, and any of . _ - / :", o.Namespace)
	}
	if o.WaitReplicas < 0 {
		bad("WaitReplicas is negative")
	}
	if o.WaitReplicas > 0 && o.WaitTimeout >= o.Timeout {
		bad("WaitTimeout (%v) has to be shorter than Timeout (%v)", o.WaitTimeout, o.Timeout)
	}
	o.Cluster = o.Cluster || o.Sentinel == nil && len(o.Addresses) > 1
	if o.Database < 0 || o.Database != 0 && o.Cluster {
		bad("database %d: a cluster knows only database 0", o.Database)
	}
	if o.Sentinel != nil && o.Sentinel.Master == "" {
		bad("Sentinel.Master is empty: it is the name that the sentinels know the primary by")
	}
	if o.Sentinel != nil && o.Cluster {
		bad("Cluster and Sentinel are both set: a cluster needs no sentinels")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

func isNamespace(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:", r)
}

func address(a, port string) (string, error) {
	if strings.HasPrefix(a, "/") {
		return a, nil
	}
	host, p, err := net.SplitHostPort(a)
	if err != nil {
		host, p = strings.Trim(a, "[]"), port
	}
	if host == "" || strings.ContainsAny(host, "/@ ") {
		return "", fmt.Errorf("address %q: use host:port", a)
	}
	return net.JoinHostPort(host, p), nil
}

// client returns the options of the driver.
func (o *Options) client() rueidis.ClientOption {
	c := rueidis.ClientOption{
		InitAddress: o.Addresses,
		Username:    o.Username,
		Password:    o.Password,
		TLSConfig:   o.TLS,
		SelectDB:    o.Database,
		ClientName:  o.ClientName,
		// CLIENT SETINFO is not known to servers before 7.2.
		ClientSetInfo:    rueidis.DisableClientSetInfo,
		ConnWriteTimeout: o.Timeout,
		// Each call has a connection to itself: no pipeline that nobody asked
		// for, and no goroutine beside the caller's.
		DisableAutoPipelining: true,
		DisableCache:          true,
		// A write whose reply was lost is repeated by its caller, who knows
		// the tokens, or not at all.
		DisableRetry: true,
		// One connection per node, which is used to find out about nodes.
		PipelineMultiplex:   -1,
		BlockingPoolCleanup: idleConnections,
		BlockingPoolMinSize: 1,
		// The driver's own sizes take 1.3 MiB for a connection.
		ReadBufferEachConn:  bufferBytes,
		WriteBufferEachConn: bufferBytes,
		RingScaleEachConn:   ringScale,
		// Only database 0 of a cluster exists, so that another one answers the
		// question whether the server is one.
		ForceSingleClient: o.Database != 0 && o.Sentinel == nil,
	}
	c.Dialer.Timeout = o.DialTimeout
	c.Dialer.KeepAlive = keepAlive
	c.ClusterOption.MaxMovedRedirections = maxRedirections
	c.ClusterOption.ShardsRefreshInterval = topologyRefresh
	if s := o.Sentinel; s != nil {
		c.Sentinel = rueidis.SentinelOption{MasterSet: s.Master, Username: s.Username, Password: s.Password,
			TLSConfig: o.TLS, Dialer: c.Dialer, ClientName: o.ClientName, TopologyRefreshInterval: topologyRefresh}
	}
	return c
}

const (
	keepAlive       = 15 * time.Second
	idleConnections = time.Minute     // after which a connection that nobody uses is closed
	bufferBytes     = 64 << 10        // of what is read and of what is written; more takes several system calls
	ringScale       = 2               // the power of two that bounds what waits for a connection, where nobody shares one
	topologyRefresh = 5 * time.Second // how often sentinels and cluster nodes are asked
	maxRedirections = 5
)

// ParseURL returns the options that a URL stands for:
//
//	redis://user:password@host:6379/0
//	rediss://host                            with TLS
//	unix:///run/redis.sock?db=0
//	redis+cluster://host1:6379,host2:6379    (rediss+cluster with TLS)
//	redis+sentinel://host1,host2/master/0    (rediss+sentinel with TLS)
//
// User, password and path may be %-encoded. Parameters: db, namespace,
// timeout, dial_timeout, wait_replicas, wait_timeout, client_name, check
// (refuse, strict, warn, off), skip_verify (TLS without proof of the server's
// identity), sentinel_user, sentinel_password, and those that more knows: it
// says whether it does. No error shows the URL, which may hold a password.
func ParseURL(s string, more func(name, value string) (bool, error)) (Options, error) {
	var o Options
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		return o, errors.New("it does not begin with a scheme such as redis://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	// Several hosts are no URL to net/url, so the rest is taken apart here.
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		authority = authority[i+1:]
		var uerr, perr error
		o.Username, uerr = url.PathUnescape(user)
		o.Password, perr = url.PathUnescape(password)
		if uerr != nil || perr != nil {
			return o, errors.New("user or password is not %-encoded correctly")
		}
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return o, errors.New("the path is not %-encoded correctly")
	}
	base, kind, _ := strings.Cut(scheme, "+")
	switch base {
	case "redis":
	case "rediss":
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	case "unix":
		o.Addresses = []string{"/" + path}
		path = ""
	default:
		return o, errors.New("the scheme is none of redis, rediss, unix, redis+cluster, rediss+cluster, redis+sentinel, rediss+sentinel")
	}
	if base != "unix" {
		o.Addresses = strings.Split(authority, ",")
	}
	switch kind {
	case "":
	case "cluster":
		o.Cluster = true
	case "sentinel":
		master, db, _ := strings.Cut(path, "/")
		o.Sentinel, path = &Sentinel{Master: master}, db
	default:
		return o, errors.New("what follows the + of the scheme is neither cluster nor sentinel")
	}
	if path != "" {
		if o.Database, err = strconv.Atoi(path); err != nil {
			return o, errors.New("the path is no database number")
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return o, errors.New("the parameters are not %-encoded correctly")
	}
	return o, o.parameters(values, more)
}

func (o *Options) parameters(values url.Values, more func(name, value string) (bool, error)) error {
	for name, list := range values {
		v := list[len(list)-1]
		var err error
		switch name {
		case "db":
			o.Database, err = strconv.Atoi(v)
		case "namespace":
			o.Namespace = v
		case "timeout":
			o.Timeout, err = time.ParseDuration(v)
		case "dial_timeout":
			o.DialTimeout, err = time.ParseDuration(v)
		case "wait_replicas":
			o.WaitReplicas, err = strconv.Atoi(v)
		case "wait_timeout":
			o.WaitTimeout, err = time.ParseDuration(v)
		case "client_name":
			o.ClientName = v
		case "check":
			err = o.Check.parse(v)
		case "skip_verify":
			var skip bool
			if skip, err = strconv.ParseBool(v); err == nil && skip {
				if o.TLS == nil {
					return errors.New("skip_verify without TLS: use rediss")
				}
				o.TLS.InsecureSkipVerify = true
			}
		case "sentinel_user", "sentinel_password":
			if o.Sentinel == nil {
				return fmt.Errorf("%s without sentinels", name)
			}
			if name == "sentinel_user" {
				o.Sentinel.Username = v
			} else {
				o.Sentinel.Password = v
			}
		default:
			known := false
			if more != nil {
				known, err = more(name, v)
			}
			if !known && strings.Contains(name, "@") {
				return errors.New("a parameter has an @ in its name: write a ? in a password as %3F")
			}
			if !known {
				return fmt.Errorf("unknown parameter %q", name)
			}
		}
		if err != nil {
			return fmt.Errorf("parameter %s: %q cannot be used", name, v)
		}
	}
	return nil
}
