package leasehold_test

import (
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold"
)

// A lease that is not there prints as such, also where it is embedded.
func TestNoLeasePrints(t *testing.T) {
	type job struct {
		*leasehold.Lease
		what string
	}
	for _, v := range []any{(*leasehold.Lease)(nil), &leasehold.Lease{}, job{what: "x"}} {
		if got := fmt.Sprintf("%v %+v %s", v, v, v); got != "<nil> <nil> <nil>" {
			t.Errorf("%T prints %q", v, got)
		}
	}
	if got := (*leasehold.Lease)(nil).LogValue().String(); got != "<nil>" {
		t.Errorf("logs %q", got)
	}
}
