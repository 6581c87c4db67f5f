package serve

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// sameOrigin looks at what a browser says of where a call comes from.
var sameOrigin = http.NewCrossOriginProtection()

// fromHere refuses calls that somebody else's page makes a browser send. These are calls that
// change something and come from another origin. They are also all calls over the loopback to a
// host name that is not one of its names, because such a page uses one to be the same origin.
func (s *Server) fromHere(r *http.Request) error {
	host := hostOf(r.Host)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && isLoopback(hostOf(local.String())) {
		if !isLoopback(host) && !slices.ContainsFunc(s.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return fmt.Errorf("the host %.100q is none of this server's names", host)
		}
	}
	return sameOrigin.Check(r)
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
