package serve

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// fromHere refuses what a page of somebody else has a browser send: a call that changes
// something and comes from another origin, and any call to a name of loopback that is not one,
// which is how such a page makes itself the same origin.
func (s *Server) fromHere(r *http.Request) error {
	host := hostOf(r.Host)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && isLoopback(hostOf(local.String())) {
		if !isLoopback(host) && !slices.ContainsFunc(s.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return fmt.Errorf("the host %.100q is none of this server's names", host)
		}
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return fmt.Errorf("a call from another site: %.20q", site)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("a call from another origin: %.100q", origin)
		}
	}
	return nil
}

// hostOf is a host without its port and brackets.
func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}

// isLoopback reports whether a host is this machine's, by its address or its name.
func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
