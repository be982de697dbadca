package main

import (
	"net"
	"sync"
	"time"
)

// proxy makes connections longer: each byte arrives a while after it was sent, in
// each direction. It delays and does not throttle: while bytes are on their way
// more can be sent.
type proxy struct {
	l     net.Listener
	to    string
	delay time.Duration
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		conns  map[net.Conn]struct{}
	}
}

// Bounds of what is on its way in one direction of a connection: so many pieces of
// at most so many bytes. At a delay of a millisecond they let a million pieces
// through in a second.
const (
	maxPieces   = 1024
	pieceBuffer = 64 << 10
)

// startProxy starts a proxy in front of an address.
func startProxy(to string, delay time.Duration) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{l: l, to: to, delay: delay}
	p.mu.conns = map[net.Conn]struct{}{}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// close ends the proxy and its connections.
func (p *proxy) close() error {
	err := p.l.Close()
	p.mu.Lock()
	p.mu.closed = true
	for c := range p.mu.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

// keep notes a connection for close. It says no when that has been called.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		_ = c.Close()
		return false
	}
	p.mu.conns[c] = struct{}{}
	return true
}

func (p *proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		if !p.keep(client) {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil || !p.keep(server) {
			_ = client.Close()
			continue
		}
		p.forward(client, server)
		p.forward(server, client)
	}
}

// piece are bytes on their way.
type piece struct {
	due   time.Time
	bytes []byte
}

// forward passes bytes on from one connection to another until either ends.
func (p *proxy) forward(from, to net.Conn) {
	pieces := make(chan piece, maxPieces)
	free := make(chan []byte, cap(pieces))
	p.wg.Go(func() {
		defer close(pieces)
		for {
			var b []byte
			select {
			case b = <-free:
			default:
				b = make([]byte, pieceBuffer)
			}
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{time.Now().Add(p.delay), b[:n]}
			}
			if err != nil {
				return
			}
		}
	})
	p.wg.Go(func() {
		defer from.Close()
		defer to.Close()
		var failed error
		for x := range pieces {
			if failed != nil {
				continue // until the reader has seen the end of its connection
			}
			waitUntil(x.due)
			if _, failed = to.Write(x.bytes); failed != nil {
				_ = from.Close()
				continue
			}
			select {
			case free <- x.bytes[:cap(x.bytes)]:
			default:
			}
		}
	})
}
