package redisconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// CheckMode says what Open does about what the start-up check finds.
type CheckMode int

// The modes. Whatever is not refused is logged as a warning.
const (
	// CheckRefuse refuses a server that cannot work, or that loses state
	// without a failure: findings with Danger set.
	CheckRefuse CheckMode = iota
	// CheckStrict refuses any finding.
	CheckStrict
	// CheckWarn refuses nothing.
	CheckWarn
	// CheckOff does not look.
	CheckOff
)

var checkModes = []string{"refuse", "strict", "warn", "off"}

// String is the name of the mode in a URL.
func (m CheckMode) String() string {
	if m < 0 || int(m) >= len(checkModes) {
		return "CheckMode(" + strconv.Itoa(int(m)) + ")"
	}
	return checkModes[m]
}

func (m *CheckMode) parse(s string) error {
	i := slices.Index(checkModes, s)
	if i < 0 {
		return errors.New("unknown check mode")
	}
	*m = CheckMode(i)
	return nil
}

// Finding is something about the set-up of a server that a person should know.
type Finding struct {
	// Node is the address of the server, "" when it concerns all of them.
	Node string
	// Subject is what it is about: "version", "eviction", "persistence",
	// "replicas", "role", "cluster", "clock", "rights".
	Subject string
	// Message says what was found, what may come of it, and what to do.
	Message string
	// Danger says that the server cannot work as a state store, or loses
	// state without any failure.
	Danger bool
}

// String is one line for people.
func (f Finding) String() string {
	where := ""
	if f.Node != "" {
		where = f.Node + ": "
	}
	return where + f.Subject + ": " + f.Message
}

// Bounds of the check.
const (
	MinMajor, MinMinor = 6, 2
	MaxClockSkew       = 5 * time.Second
)

// Check looks at how the server is set up. No finding means that it is fine.
// The error is about the check itself.
//
//	subject      dangerous                         a warning
//	-----------  --------------------------------  ------------------------------
//	version      below 6.2                         unknown
//	role         a replica
//	eviction     maxmemory with allkeys-*, or      the same without maxmemory,
//	             with volatile-* where states      other volatile-*
//	             have an expiry (Expires)
//	persistence                                    no append-only file, or one
//	                                               that is never synced, or whose
//	                                               last write failed
//	replicas                                       fewer online, as the primary
//	                                               sees it, than WaitReplicas
//	cluster      down, or slots without a node     a node cannot be asked
//	clock                                          5 s off this machine's
//	rights                                         CONFIG or INFO are refused, so
//	                                               that something is not known
func (s *Server) Check(ctx context.Context) ([]Finding, error) {
	var all []Finding
	err := s.Breaker("").guard(func() error {
		nodes := s.Nodes()
		away := 0
		for node, client := range nodes {
			found, err := s.checkNode(ctx, node, client)
			if errors.Is(err, s.opts.Errors.Unavailable) {
				if away++; away < len(nodes) {
					all = append(all, Finding{node, "cluster", fmt.Sprintf("the node cannot be asked: %v", err), false})
					continue
				}
			}
			if err != nil {
				return fmt.Errorf("check %s: %w", node, err)
			}
			all = append(all, found...)
		}
		if s.IsCluster() {
			found, err := s.checkCluster(ctx)
			if err != nil {
				return fmt.Errorf("check the cluster: %w", err)
			}
			all = append(all, found...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y Finding) int {
		return strings.Compare(x.Node+"\x00"+x.Subject, y.Node+"\x00"+y.Subject)
	})
	return all, nil
}

// Refuse is the start-up check, as strict as Options.Check says: what it does
// not refuse, it logs.
func (s *Server) Refuse(ctx context.Context) error {
	mode := s.opts.Check
	if mode == CheckOff {
		return nil
	}
	found, err := s.Check(ctx)
	if err != nil {
		return err
	}
	var bad []string
	for _, f := range found {
		if mode != CheckWarn && (f.Danger || mode == CheckStrict) {
			bad = append(bad, f.String())
			continue
		}
		s.opts.Logger.Warn("the set-up of redis endangers state", "node", f.Node, "subject", f.Subject, "finding", f.Message)
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s (the setting check, in the URL or the options, says how strict this is)", s.opts.Errors.Unsuitable, strings.Join(bad, "; "))
}

// Nodes are the servers by address.
func (s *Server) Nodes() map[string]rueidis.Client {
	if s.IsCluster() {
		return s.client.Nodes()
	}
	return map[string]rueidis.Client{strings.Join(s.opts.Addresses, ","): s.client}
}

// Info is what INFO says, by field.
type Info map[string]string

// verbatim begins a text of RESP3 that is not to be reformatted.
const verbatim = "txt:"

// ParseInfo takes the reply of INFO apart.
func ParseInfo(text string) Info {
	in := Info{}
	for line := range strings.Lines(strings.TrimPrefix(text, verbatim)) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			in[name] = value
		}
	}
	return in
}

// Online counts the replicas that a primary sees online. A replica that says
// of itself that it is connected may not get anything for a second after its
// first copy of the data.
func (in Info) Online() int {
	n := 0
	for name, value := range in {
		if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
			n++
		}
	}
	return n
}

func (s *Server) checkNode(ctx context.Context, node string, client rueidis.Client) ([]Finding, error) {
	var found []Finding
	add := func(danger bool, subject, format string, args ...any) {
		found = append(found, Finding{node, subject, fmt.Sprintf(format, args...), danger})
	}
	build := func(verb string, args ...string) rueidis.Completed {
		return client.B().Arbitrary(verb).Args(args...).Build()
	}
	begin := time.Now()
	clock, err := client.Do(ctx, build("TIME")).AsStrSlice()
	took := time.Since(begin)
	if err := s.Classify(ctx, err); errors.Is(err, s.opts.Errors.Unavailable) || IsContext(err) {
		return nil, err
	}
	if err == nil && len(clock) == 2 {
		if seconds, err := strconv.ParseInt(clock[0], 10, 64); err == nil {
			if off := time.Unix(seconds, 0).Sub(begin); off > MaxClockSkew+took || off < -MaxClockSkew-took-time.Second {
				add(false, "clock", "it is %v off the clock of this machine: ages and leases cannot be told across machines; set the clocks", off.Round(time.Second))
			}
		}
	}
	text, err := client.Do(ctx, build("INFO")).ToString()
	if err := s.Classify(ctx, err); err != nil {
		if errors.Is(err, s.opts.Errors.Unavailable) || IsContext(err) {
			return nil, err
		}
		add(false, "rights", "INFO is refused (%v): version, eviction, persistence and replicas are not known", err)
		return found, nil
	}
	in := ParseInfo(text)
	checkVersion(in["redis_version"], add)
	replica := in["role"] == "slave"
	if replica && !s.IsCluster() {
		add(true, "role", "it is a replica and takes no writes: give the address of the primary, or the sentinels")
	}
	checkEviction(in["maxmemory_policy"], in["maxmemory"], s.opts.Expires, add)
	if err := s.checkPersistence(ctx, in, build, client, add); err != nil {
		return nil, err
	}
	if n := in.Online(); !replica && s.opts.WaitReplicas > n {
		add(false, "replicas", "%d of the %d that WaitReplicas asks for are online, as the primary sees it: every write will fail until they are", n, s.opts.WaitReplicas)
	}
	return found, nil
}

func checkVersion(version string, add func(bool, string, string, ...any)) {
	if version == "" {
		add(false, "version", "the server does not tell it: 6.2 or later is needed")
		return
	}
	part := strings.SplitN(version, ".", 3)
	major, err := strconv.Atoi(part[0])
	minor := 0
	if err == nil && len(part) > 1 {
		minor, err = strconv.Atoi(part[1])
	}
	switch {
	case err != nil:
		add(false, "version", "%q is not understood: 6.2 or later is needed", version)
	case major < MinMajor || major == MinMajor && minor < MinMinor:
		add(true, "version", "%s is too old: 6.2 or later is needed", version)
	}
}

func checkEviction(policy, maxmemory string, expires bool, add func(bool, string, string, ...any)) {
	switch {
	case strings.HasPrefix(policy, "allkeys-") && maxmemory != "0":
		add(true, "eviction", "maxmemory-policy is %s: Redis removes state when it reaches maxmemory; set it to noeviction", policy)
	case strings.HasPrefix(policy, "allkeys-"):
		add(false, "eviction", "maxmemory-policy is %s: Redis will remove state once maxmemory is set; set it to noeviction", policy)
	case strings.HasPrefix(policy, "volatile-") && expires && maxmemory != "0":
		add(true, "eviction", "maxmemory-policy is %s: Redis removes state, which has an expiry, when it reaches maxmemory; set it to noeviction", policy)
	case strings.HasPrefix(policy, "volatile-") && expires:
		add(false, "eviction", "maxmemory-policy is %s: Redis will remove state, which has an expiry, once maxmemory is set; set it to noeviction", policy)
	case strings.HasPrefix(policy, "volatile-"):
		add(false, "eviction", "maxmemory-policy is %s: keys of states have no expiry and stay, but writes fail once nothing else can be removed; noeviction says the same sooner", policy)
	}
}

func (s *Server) checkPersistence(ctx context.Context, in Info, build func(string, ...string) rueidis.Completed, client rueidis.Client, add func(bool, string, string, ...any)) error {
	if in["aof_enabled"] == "0" {
		add(false, "persistence", "there is no append-only file: a restart forgets what came after the last snapshot, or everything, and %s; set appendonly yes", s.opts.Forgot)
	}
	if in["aof_last_write_status"] == "err" || in["aof_last_bgrewrite_status"] == "err" || in["rdb_last_bgsave_status"] == "err" {
		add(false, "persistence", "the last write of the append-only file or of a snapshot failed: look at the server's log and its disk")
	}
	if in["aof_enabled"] != "1" {
		return nil
	}
	pairs, err := client.Do(ctx, build("CONFIG", "GET", "appendfsync")).AsStrMap()
	if err := s.Classify(ctx, err); err != nil {
		if errors.Is(err, s.opts.Errors.Unavailable) || IsContext(err) {
			return err
		}
		add(false, "rights", "CONFIG GET is refused (%v): whether the append-only file is synced is not known", err)
		return nil
	}
	if pairs["appendfsync"] == "no" {
		add(false, "persistence", "appendfsync is no: a failure of the machine forgets what the operating system had not written yet, and %s; set everysec or always", s.opts.Forgot)
	}
	return nil
}

// checkCluster asks one node after the other until one answers: the driver
// would choose one that may be down.
func (s *Server) checkCluster(ctx context.Context) ([]Finding, error) {
	var text string
	var err error
	for _, node := range s.Nodes() {
		text, err = node.Do(ctx, node.B().Arbitrary("CLUSTER").Args("INFO").Build()).ToString()
		if err = s.Classify(ctx, err); err == nil || !errors.Is(err, s.opts.Errors.Unavailable) {
			break
		}
	}
	if err != nil {
		if errors.Is(err, s.opts.Errors.Unavailable) || IsContext(err) {
			return nil, err
		}
		return []Finding{{"", "rights", fmt.Sprintf("CLUSTER INFO is refused (%v): whether all slots are served is not known", err), false}}, nil
	}
	in := ParseInfo(text)
	n, err := strconv.Atoi(in["cluster_slots_ok"])
	if in["cluster_state"] != "ok" || err != nil || n != Slots {
		return []Finding{{"", "cluster", fmt.Sprintf("its state is %q with %s of %d slots served: what is in the others cannot run", in["cluster_state"], in["cluster_slots_ok"], Slots), true}}, nil
	}
	return nil, nil
}
