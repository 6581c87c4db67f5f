package kubelock

import (
	"context"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var urlForm = storeurl.Form{Schemes: []string{"kubernetes"}, Options: []string{"kubeconfig", "context"}, NoUser: true}

// OpenURL returns a *Driver on the Leases of the namespace that a URL names. It sends nothing.
//
//	kubernetes://NAMESPACE?kubeconfig=PATH&context=NAME
//
// Without a kubeconfig it is that of KUBECONFIG, else ~/.kube/config, else the pod's own account. An error
// that matches [driver.ErrURL]: the URL cannot be used as it is written. No error has a secret.
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
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(files, over).ClientConfig()
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	d, err := New(config, u.Hosts[0], nil)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	return d, nil
}
