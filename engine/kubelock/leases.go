package kubelock

import (
	"context"

	"github.com/go-logr/logr"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/leasehold-go/leasehold/internal/links"
)

// leases is a client for the Leases of one namespace. A clientset would support all kinds of
// objects and be ten times as large. client-go's gentype would add a server for tests and
// everything for OpenAPI.
type leases struct {
	sender    *rest.RESTClient
	codec     runtime.ParameterCodec
	namespace string
	links     *links.Links
}

// to completes a request with options of package meta.
func (l *leases) to(req *rest.Request, options runtime.Object) *rest.Request {
	return req.Namespace(l.namespace).Resource("leases").VersionedParams(options, l.codec)
}

// do sends a request whose answer is a Lease.
func (l *leases) do(ctx context.Context, req *rest.Request) (*coordination.Lease, error) {
	var answer coordination.Lease
	return &answer, l.into(ctx, req, &answer)
}

// into sends a request and decodes the answer into answer.
func (l *leases) into(ctx context.Context, req *rest.Request, answer runtime.Object) error {
	ctx, attempt := l.links.Begin(quiet(ctx))
	return attempt.End(req.Do(ctx).Into(answer))
}

// get reads a Lease.
func (l *leases) get(ctx context.Context, name string) (*coordination.Lease, error) {
	return l.do(ctx, l.to(l.sender.Get(), &meta.GetOptions{}).Name(name))
}

func (l *leases) create(ctx context.Context, lease *coordination.Lease) (*coordination.Lease, error) {
	return l.do(ctx, l.to(l.sender.Post(), &meta.CreateOptions{FieldManager: manager}).Body(lease))
}

// merge applies change, a merge patch, to a Lease.
func (l *leases) merge(ctx context.Context, name string, change []byte) (*coordination.Lease, error) {
	return l.do(ctx, l.to(l.sender.Patch(types.MergePatchType), &meta.PatchOptions{FieldManager: manager}).Name(name).Body(change))
}

func (l *leases) list(ctx context.Context, opts meta.ListOptions) (*coordination.LeaseList, error) {
	var answer coordination.LeaseList
	return &answer, l.into(ctx, l.to(l.sender.Get(), &opts), &answer)
}

// watch reports changes of Leases since the version in opts.
func (l *leases) watch(ctx context.Context, opts meta.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return l.to(l.sender.Get(), &opts).Watch(quiet(ctx))
}

// quiet keeps client-go from writing to standard error. Callers get its errors.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }
