package driver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestOwner(t *testing.T) {
	const whole = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	owner := driver.OwnerOf(whole)
	if owner.Reveal() != whole || owner.String() != "ABCDEFGH" || owner != driver.OwnerOf(strings.Clone(whole)) || owner == driver.OwnerOf("another") {
		t.Errorf("%v reveals %q", owner, owner.Reveal()[:8])
	}
	var nobody driver.Owner
	if nobody != driver.OwnerOf("") || nobody.Reveal() != "" || fmt.Sprint(nobody) != "" {
		t.Errorf("the zero Owner is %q", nobody.Reveal())
	}
	shown := driver.ShownOwner(whole)
	if !shown.IsShown() || owner.IsShown() || shown == owner || shown.Reveal() != whole || driver.ShownOwner("") != nobody {
		t.Errorf("%v is not what others see of an owner", shown)
	}
	// Fmt asks no method of a field that is not exported.
	for _, v := range []any{struct{ o driver.Owner }{owner}, struct{ o *driver.Owner }{&owner}, struct{ h driver.Holder }{driver.Holder{Owner: owner}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, whole) || strings.Contains(text, fmt.Sprintf("%x", whole)) {
				t.Errorf("%s of %T shows the owner", verb, v)
			}
		}
	}
}
