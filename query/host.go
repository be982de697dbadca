package query

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// hostAllowed decides by the Host header whether a request may come from where it
// says; see Options.Hosts. The attack needs a name: an IP address in the header
// is the one that the browser has connected to.
func (h *handler) hostAllowed(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return true // not from a net/http server
	}
	addr, err := netip.ParseAddrPort(local.String())
	if err != nil || !addr.Addr().Unmap().IsLoopback() {
		return true
	}
	host := canonicalHost(r.Host)
	if host == "" { // HTTP/1.0, which no browser speaks
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || slices.Contains(h.hosts, host)
}

// canonicalHost returns a name or address in lower case, without a port, without
// the brackets of an IPv6 address, and without the dot at the end of a full name.
func canonicalHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
