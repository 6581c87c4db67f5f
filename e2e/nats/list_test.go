package nats

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Pages that end before the bucket does leave no goroutine in the client. The test is not parallel: no other watches.
func TestShortPagesLeaveNothing(t *testing.T) {
	d := open(t, urlOf(servers.StartNATS(t, 1, "")))
	defer d.Close()
	const records, pages = 600, 20 // the client buffers 256
	for i := range records {
		claimtest.Granted(t, claim(t, d, fmt.Sprint(i), "holder"))
	}
	for range pages {
		if states, next, err := d.(driver.Operator).List(t.Context(), "", "", 1); err != nil || len(states) != 1 || next == "" {
			t.Fatalf("List: %v, %q, %v; want a page of one", states, next, err)
		}
	}
	buf := make([]byte, 10<<20)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := strings.Count(string(buf[:runtime.Stack(buf, true)]), "jetstream.(*kvs).WatchFiltered.func1(")
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines deliver what nobody reads", n)
		}
	}
}
