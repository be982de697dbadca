package redisstore

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/state"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	for url, want := range map[string]Options{
		"redis://localhost":                {Addresses: []string{"localhost"}},
		"redis://localhost:7000/3":         {Addresses: []string{"localhost:7000"}, Database: 3},
		"redis://[::1]:7000":               {Addresses: []string{"[::1]:7000"}},
		"rediss://u:p%40%2F@h":             {Addresses: []string{"h"}, Username: "u", Password: "p@/", TLS: secure},
		"redis://:p@h":                     {Addresses: []string{"h"}, Password: "p"},
		"redis://u:p@x@h":                  {Addresses: []string{"h"}, Username: "u", Password: "p@x"},
		"unix:///run/redis.sock?db=2":      {Addresses: []string{"/run/redis.sock"}, Database: 2},
		"redis+cluster://a:1,b:2":          {Addresses: []string{"a:1", "b:2"}, Cluster: true},
		"rediss+cluster://a":               {Addresses: []string{"a"}, Cluster: true, TLS: secure},
		"redis+sentinel://a,b:3/main/4":    {Addresses: []string{"a", "b:3"}, Sentinel: &Sentinel{Master: "main"}, Database: 4},
		"redis+sentinel://a/main":          {Addresses: []string{"a"}, Sentinel: &Sentinel{Master: "main"}},
		"redis://h?namespace=n&buckets=16": {Addresses: []string{"h"}, Namespace: "n", Buckets: 16},
		"redis://h?point_lookups=a,b&timeout=3s&dial_timeout=1s&wait_replicas=1&wait_timeout=100ms&client_name=c&check=strict": {Addresses: []string{"h"},
			PointLookups: []string{"a", "b"}, Timeout: 3 * time.Second, DialTimeout: time.Second, WaitReplicas: 1, WaitTimeout: 100 * time.Millisecond, ClientName: "c", Check: CheckStrict},
		"redis://h?unordered=true&check=off":                               {Addresses: []string{"h"}, Unordered: true, Check: CheckOff},
		"redis://h?scripts_only=true":                                      {Addresses: []string{"h"}, ScriptsOnly: true},
		"rediss://h?skip_verify=1":                                         {Addresses: []string{"h"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}},
		"redis+sentinel://a/main?sentinel_user=su&sentinel_password=s%20p": {Addresses: []string{"a"}, Sentinel: &Sentinel{Master: "main", Username: "su", Password: "s p"}},
	} {
		got, err := ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v", url, got)
		}
	}
}

const secret = "s3cr3t%40w0rd"

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "h:6379", "http://u:" + secret + "@h", "redis://u:" + secret + "%zz@h", "redis://u:" + secret + "@h/x", "redis://u:" + secret + "@h?timeout=fast",
		"redis://u:" + secret + "@h?colour=red", "redis://u:" + secret + "@h?%zz", "redis+ring://u:" + secret + "@h", "redis://u:" + secret + "@h/%zz",
		"redis://u:" + secret + "@h?skip_verify=true", "redis://u:" + secret + "@h?sentinel_user=x", "redis://u:" + secret + "@h?check=maybe",
		"redis+sentinel://h/m?sentinel_password=" + secret + "&db=x",
	} {
		_, err := ParseURL(url)
		if err == nil {
			t.Errorf("%q is taken", url)
		} else if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error of %q shows the password: %v", url, err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	at := []string{"127.0.0.1:1"}
	for want, o := range map[string]Options{
		"no address":                   {},
		"use host:port":                {Addresses: []string{"user:secret@h:1"}},
		"namespace":                    {Addresses: at, Namespace: "a{b}"},
		"Buckets is -1":                {Addresses: at, Buckets: -1},
		"Buckets is 1025":              {Addresses: at, Buckets: MaxBuckets + 1},
		"WaitReplicas is negative":     {Addresses: at, WaitReplicas: -1},
		"WaitTimeout (2s) has to be":   {Addresses: at, WaitReplicas: 1, WaitTimeout: 2 * time.Second},
		"Timeout is negative":          {Addresses: at, Timeout: -1},
		"a cluster knows only":         {Addresses: at, Cluster: true, Database: 1},
		"Sentinel.Master is empty":     {Addresses: at, Sentinel: &Sentinel{}},
		"Cluster and Sentinel":         {Addresses: at, Cluster: true, Sentinel: &Sentinel{Master: "m"}},
		`PointLookups: "" is no store`: {Addresses: at, PointLookups: []string{""}},
	} {
		_, err := Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
		if _, err := OpenReader(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error of OpenReader %v", want, err)
		}
	}
}

// No way to print options, and no error or log line, shows a secret.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	const hidden = "hunter2"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	var log bytes.Buffer
	base := Options{Addresses: []string{nobody}, Username: "user", Password: hidden, Timeout: time.Second, DialTimeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	withSentinel := base
	withSentinel.Sentinel = &Sentinel{Master: "m", Username: "su", Password: hidden}
	m := miniRedis(t)
	refused := base
	refused.Addresses = m.Addresses // which has no such user
	for _, o := range []Options{base, withSentinel, refused} {
		_, err := Open(t.Context(), o)
		if err == nil {
			t.Fatalf("%v can be opened", o)
		}
		base.Logger.Info("options", "value", o, "pointer", &o, "sentinel", o.Sentinel)
		js, jerr := json.Marshal(o)
		if jerr != nil {
			t.Fatal(jerr)
		}
		for _, shown := range []string{err.Error(), fmt.Sprintf("%v %+v %#v %s", o, o, o, o), fmt.Sprintf("%v %+v %#v", &o, &o, &o),
			fmt.Sprintf("%v %+v %#v", o.Sentinel, o.Sentinel, o.Sentinel), string(js), log.String()} {
			if strings.Contains(shown, hidden) {
				t.Errorf("shows the secret: %s", shown)
			}
		}
	}
	if log.Len() == 0 {
		t.Error("nothing was logged")
	}
}

// The error of a server that is not there says that it may come.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, o := range []Options{{}, {Cluster: true}, {Sentinel: &Sentinel{Master: "m"}}} {
		o.Addresses, o.DialTimeout = []string{l.Addr().String()}, time.Second
		_, err = Open(t.Context(), o)
		if !errors.Is(err, state.ErrUnavailable) {
			t.Errorf("%v: %v, want state.ErrUnavailable", o, err)
		}
	}
}
