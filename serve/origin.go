package serve

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// sameOrigin checks a browser's headers about the origin of a call.
var sameOrigin = http.NewCrossOriginProtection()

// fromHere refuses calls that another site's page makes a browser send: calls that change something
// and come from another origin. It also refuses calls over the loopback to a host name that is not
// one of the loopback's. Such a page can use its own name, to count as the same origin.
func (s *Server) fromHere(r *http.Request) error {
	host := hostOf(r.Host)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && isLoopback(hostOf(local.String())) {
		if !isLoopback(host) && !slices.ContainsFunc(s.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return fmt.Errorf("the host %.100q is none of this server's names", host)
		}
	}
	return sameOrigin.Check(r)
}

// hostOf returns the host without port and brackets.
func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}

// isLoopback reports whether a host is this machine's loopback, by address or name.
func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
