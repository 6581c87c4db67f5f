package serve

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// A proxy is a reverse proxy that authenticates people, and names them in a header.
type proxy struct {
	header string         // "": there is none
	from   []netip.Prefix // its addresses
}

// TrustProxy lets a header name the client on connections that come directly from these addresses.
// On other connections the header is ignored. The proxy must remove it from the requests that it
// gets. Call TrustProxy before the first call to Client.
func (a *Access) TrustProxy(header string, from []netip.Prefix) error {
	if header == "" || len(from) == 0 {
		return errors.New("a proxy needs a header and addresses")
	}
	a.proxy = proxy{http.CanonicalHeaderKey(header), from}
	return nil
}

// user returns the user whom the proxy has signed in. signedIn means that the header is present.
// user is "" if it names several people.
func (p *proxy) user(r *http.Request) (user string, signedIn bool) {
	said := r.Header[p.header]
	if p.header == "" || len(said) == 0 {
		return "", false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.ContainsFunc(p.from, func(one netip.Prefix) bool { return one.Contains(peer.Addr().Unmap().WithZone("")) }) {
		return "", false
	}
	if len(said) > 1 { // another may have added one of them
		return "", true
	}
	return said[0], true
}

// addUsers records the proxy's users that identify a client.
func (all *clients) addUsers(c *Client, users []string) error {
	for _, user := range users {
		if user == "" || all.byProxyUser[user] != nil {
			return fmt.Errorf("the user %.100q of a proxy is empty, or another client's", user)
		}
		known := c.knownBy(wire.ByProxy)
		if user != c.Name { // the log must distinguish people
			known.Name = fmt.Sprintf("%s (%s)", c.Name, user)
		}
		all.byProxyUser[user] = known
	}
	return nil
}
