package main

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return l.Addr().String()
}

// A proxy delays each byte in each direction, changes none, and lets the next
// go before the last has come.
func TestProxy(t *testing.T) {
	t.Parallel()
	const delay, pieces = 50 * time.Millisecond, 100
	p, err := startProxy(echo(t), delay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var sent bytes.Buffer
	for i := range pieces {
		piece := bytes.Repeat([]byte{byte(i)}, 1000)
		sent.Write(piece)
		if _, err := c.Write(piece); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that they do not travel as one
	}
	got := make([]byte, sent.Len())
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if !bytes.Equal(got, sent.Bytes()) {
		t.Error("what came back is not what was sent")
	}
	if took < 2*delay {
		t.Errorf("it came back after %v, before two delays of %v", took, delay)
	}
	if all := pieces * 2 * delay; took > all/3 {
		t.Errorf("%d pieces took %v: they wait for one another", pieces, took)
	}
}

// The end of a connection reaches the other side, and the end of the proxy both.
func TestProxyEnds(t *testing.T) {
	t.Parallel()
	p, err := startProxy(echo(t), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := net.Dial("tcp", p.addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives the proxy")
	}
}
