package kubelock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/reread"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/transport"
)

var urlForm = storeurl.Form{Schemes: []string{"kubernetes"}, Options: []string{"kubeconfig", "context"}, NoUser: true}

// OpenURL returns a *Driver on the Leases of the namespace of a URL. It sends nothing.
//
//	kubernetes://NAMESPACE?kubeconfig=PATH&context=NAME
//
// Without the parameter kubeconfig, OpenURL uses KUBECONFIG, else ~/.kube/config, else the pod's
// own account. Calls check these files, and the files that they name, for changes once a second.
// An error that matches [driver.ErrURL] means that the URL is invalid. No error has a secret.
func OpenURL(_ context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	if len(u.Hosts) != 1 || len(u.Path) > 0 {
		return nil, u.Wrong("takes one namespace: kubernetes://NAMESPACE")
	}
	files := clientcmd.NewDefaultClientConfigLoadingRules()
	files.ExplicitPath = u.Options.Get("kubeconfig")
	over := &clientcmd.ConfigOverrides{CurrentContext: u.Options.Get("context")}
	who := &account{read: func() (*rest.Config, error) { // keeps what it has read
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(files, over).ClientConfig()
	}}
	if err := who.look(); err != nil {
		return nil, u.Wrong("%v", err)
	}
	d, err := New(who.config, u.Hosts[0], nil)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	who.links = d.leases.links
	d.leases.sender.Client = &http.Client{Transport: transport.New(who.changed, who.transport), Timeout: who.config.Timeout}
	return d, nil
}

// An account is our identity at the API server, and the server's to us. Both come from files: the
// kubeconfig, the files that it names, or the pod's. The server's address never changes.
type account struct {
	read func() (*rest.Config, error)

	config *rest.Config // the last usable configuration; it names no files
	links  *links.Links // its connections
}

// look reads the files. If they cannot be used, as while a certificate's key has not arrived, the
// previous contents stay.
func (a *account) look() error {
	c, err := a.read()
	if err != nil {
		return err
	}
	c = rest.CopyConfig(c)
	if c.BearerTokenFile != "" {
		text, err := os.ReadFile(c.BearerTokenFile)
		if err != nil {
			return err
		}
		if c.BearerToken = strings.TrimSpace(string(text)); c.BearerToken == "" {
			return errors.New("the token's file is empty")
		}
	}
	if err := rest.LoadTLSFiles(c); err != nil {
		return err
	}
	c.BearerTokenFile, c.CAFile, c.CertFile, c.KeyFile = "", "", "", ""
	if len(c.CAData) > 0 {
		if _, err := reread.Pool([][]byte{c.CAData}); err != nil {
			return fmt.Errorf("the cluster's authorities: %w", err)
		}
	}
	if len(c.CertData) > 0 || len(c.KeyData) > 0 {
		if _, err := reread.Pair([][]byte{c.CertData, c.KeyData}); err != nil {
			return fmt.Errorf("the client's certificate: %w", err)
		}
	}
	if a.config != nil && len(a.config.CAData) > 0 && len(c.CAData) == 0 { // a pod's own may be missing for a moment
		return errors.New("the cluster's authorities are gone")
	}
	a.config = c
	return nil
}

// changed is an argument of [transport.New], as is transport.
func (a *account) changed() any {
	_ = a.look() // on an error, the former configuration stays
	c := a.config
	return [...]string{c.Username, c.Password, c.BearerToken, string(c.CAData), string(c.CertData), string(c.KeyData)}
}

func (a *account) transport() http.RoundTripper {
	c := rest.CopyConfig(a.config)
	c.Dial = a.links.Dialer(c.Dial)
	t, err := rest.TransportFor(c)
	if err != nil {
		return nil
	}
	return t
}
