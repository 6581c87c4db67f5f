package etcdlock

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// watched are the credentials of connections that are links. A dialer would see them too, but gRPC
// reads the proxies of the environment only without one.
type watched struct {
	credentials.TransportCredentials // for TLS, with the certificates that were there first
	tls                              *storeurl.TLS
	links                            *links.Links
}

// watching returns the credentials of connections with that TLS; nil: none.
func watching(over *storeurl.TLS, own *links.Links) credentials.TransportCredentials {
	if over == nil {
		return watched{insecure.NewCredentials(), nil, own}
	}
	return watched{credentials.NewTLS(over.Config()), over, own}
}

// ClientHandshake implements [credentials.TransportCredentials]. It uses the current certificates.
func (w watched) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	by := w.TransportCredentials
	if w.tls != nil {
		by = credentials.NewTLS(w.tls.Config())
	}
	return by.ClientHandshake(ctx, authority, w.links.Add(c))
}

// Clone implements [credentials.TransportCredentials].
func (w watched) Clone() credentials.TransportCredentials {
	w.TransportCredentials = w.TransportCredentials.Clone()
	return w
}
