package kubelock

import (
	"cmp"
	"context"
	"errors"
	"time"

	coordination "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Options configure a Driver. The zero value of each field is its default. The default of MinTTL
// is 3 s and of Place 8 s: waiters then write as often as candidates of client-go's leader
// election read.
type Options struct {
	caslock.Options
}

// A Driver serves claims on the Leases of a namespace.
type Driver struct {
	*caslock.Driver
	leases *leases
}

// New returns a Driver on the Leases of a namespace. It sends nothing and does not change
// config. It ignores QPS and Burst, because renewals must not wait.
func New(config *rest.Config, namespace string, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	o.Engine, o.MinTTL, o.Place = cmp.Or(o.Engine, "kubernetes"), cmp.Or(o.MinTTL, 3*time.Second), cmp.Or(o.Place, 8*time.Second)
	if !dns.MatchString(namespace) {
		return nil, errors.New("kubelock: no namespace has such a name")
	}
	leases, err := connect(rest.CopyConfig(config), namespace)
	if err != nil {
		return nil, err
	}
	cas, err := caslock.New(&store{leases}, &o.Options)
	if err != nil {
		return nil, err
	}
	return &Driver{cas, leases}, nil
}

// connect returns a client for the Leases of one namespace.
func connect(config *rest.Config, namespace string) (*leases, error) {
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config.GroupVersion, config.APIPath = &coordination.SchemeGroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own := &links.Links{}
	config.Dial = own.Dialer(config.Dial)
	config.QPS, config.RateLimiter, config.WarningHandler = -1, nil, rest.NoWarnings{}
	sender, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &leases{sender, runtime.NewParameterCodec(scheme), namespace, own}, nil
}

// rehearsed is the lock of all rehearsals, because Leases stay. It is shared.
const rehearsed = "leasehold-doctor"

// Rehearse implements [driver.Checker].
func (d *Driver) Rehearse(ctx context.Context) error {
	return rehearsal.Run(ctx, rehearsed, rehearsal.TTL, func(req driver.Request) (driver.Claim, error) {
		req.Mode = driver.Shared
		return d.Claim(req)
	})
}

// Close ends the driver's calls, its watch and its connections.
func (d *Driver) Close() error {
	err := d.Driver.Close()
	net.CloseIdleConnectionsFor(d.leases.sender.Client.Transport)
	return err
}
