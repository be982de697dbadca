package main

import (
	"errors"
	"net"
	"os"
	"testing"
)

func TestListenerPIDFindsThisProcess(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if pid, err := listenerPID(addr); pid != os.Getpid() || err != nil {
		t.Errorf("listenerPID(%s) = %d, %v; this process is %d", addr, pid, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, err := listenerPID(addr); !errors.Is(err, errNoListener) {
		t.Errorf("listenerPID of a closed port = %d, %v", pid, err)
	}
}

func TestOwnProcess(t *testing.T) {
	t.Parallel()
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for now := before; now == before; {
		if now, err = cpuTime(os.Getpid()); err != nil || now < before {
			t.Fatalf("the CPU time went from %v to %v, %v", before, now, err)
		}
	}
	const beyondTheLimit = 1<<22 + 1 // PID_MAX_LIMIT is 1<<22
	if d, err := cpuTime(beyondTheLimit); err == nil {
		t.Errorf("a process that cannot exist has used %v", d)
	}
	if rss, err := peakRSS(os.Getpid()); rss < 1<<20 || err != nil {
		t.Errorf("peakRSS = %d, %v", rss, err)
	}
}
