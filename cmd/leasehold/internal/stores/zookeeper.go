package stores

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/zklock"
)

// zookeeperOptions are what may stand after the "?" of a ZooKeeper URL.
var zookeeperOptions = []string{"prefix", "password_file", "ca_file", "cert_file", "key_file", "server_name", "tls", "ttl_nodes"}

// openZooKeeper opens "//user:password@h1,h2,h3/chroot?prefix=/leasehold". It sends nothing:
// the first call to the driver connects. Commands have TTLs of their own, so that there is
// a session for each.
func openZooKeeper(_ context.Context, rest string) (driver.Driver, string, error) {
	u, err := parseServer("zookeeper", rest, zookeeperOptions, false)
	if err != nil {
		return nil, "", err
	}
	opts := &zklock.Options{
		Chroot: strings.Join(u.path, "/"), Prefix: u.options.Get("prefix"), User: u.user, Password: u.password,
	}
	switch u.options.Get("ttl_nodes") {
	case "true":
		opts.TTLNodes = true
	case "", "false":
	default:
		return nil, "", u.wrong("ttl_nodes is true or false")
	}
	if u.user == "" {
		opts.Password = "" // of the environment, which is for a user
	}
	if u.tls != nil {
		opts.Dial = dialTLS(u.tls)
	}
	d, err := zklock.New(withPorts(u.hosts, "2181"), opts)
	if err != nil {
		return nil, "", u.wrong("%v", err)
	}
	return d, u.text, nil
}

// dialTLS is a dialer for servers that speak TLS. Without a server_name each must be who
// its address says.
func dialTLS(config *tls.Config) func(network, address string, timeout time.Duration) (net.Conn, error) {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, config)
	}
}
