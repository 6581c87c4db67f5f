package etcdlock

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasehold-go/leasehold/internal/links"
)

// watched are the credentials of connections that are links. A dialer of our own would see them too, but gRPC asks
// the environment for proxies only without one.
type watched struct {
	credentials.TransportCredentials
	links *links.Links
}

// watching returns the credentials of connections with that TLS; nil: none.
func watching(over *tls.Config, own *links.Links) credentials.TransportCredentials {
	if over == nil {
		return watched{insecure.NewCredentials(), own}
	}
	return watched{credentials.NewTLS(over), own}
}

// ClientHandshake implements [credentials.TransportCredentials].
func (w watched) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return w.TransportCredentials.ClientHandshake(ctx, authority, w.links.Add(c))
}

// Clone implements [credentials.TransportCredentials].
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone(), w.links}
}
