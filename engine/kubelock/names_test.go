package kubelock

import (
	"strings"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each name has an object of its own, that an object may have; those that leader election could use have
// theirs.
func TestObjectNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range []string{
		"a", "my-controller", "a.b-c.d", strings.Repeat("a", 253), // theirs
		"A", "a/b", "a//b", "a-", "-a", "a.", "a..b", ".", "/", "a_b", "a b", "a%2Fb", "é", "e\u0301", "leasehold-a", strings.Repeat("a", 254),
		strings.Repeat("a", 512), strings.Repeat("/", 512), strings.Repeat("a/", 100), objectName("a/b"),
	} {
		object := objectName(name)
		if len(object) > maxObject || !dns.MatchString(object) {
			t.Errorf("%q: %q is no name of an object", name, object)
		}
		if other, twice := seen[object]; twice {
			t.Errorf("%q and %q are both %q", name, other, object)
		}
		if seen[object] = name; len(seen) <= 4 && object != name {
			t.Errorf("%q became %q", name, object)
		}
		l := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: object, Annotations: map[string]string{nameKey: name}}}
		if got, ok := nameOf(l); got != name || !ok {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
	}
	for _, l := range []meta.ObjectMeta{{Name: "leasehold-a"}, {Name: "a", Annotations: map[string]string{nameKey: "b"}}} {
		if name, ok := nameOf(&coordination.Lease{ObjectMeta: l}); ok {
			t.Errorf("%v is that of %q", l, name)
		}
	}
}
