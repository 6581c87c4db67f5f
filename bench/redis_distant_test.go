package bench

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// distance is what distant adds to the round trip.
const distance = 500 * time.Microsecond

// distant returns the address of a proxy to addr that delays what goes to the server. It
// is a process of its own, so that it takes part in no scheduling of goroutines.
func distant(tb testing.TB, addr string) string {
	tb.Helper()
	var at string
	startChild(tb, "TestDistantProcess", order{Addr: addr}).hear(&at)
	return at
}

// TestDistantProcess is the proxy.
func TestDistantProcess(t *testing.T) {
	p, o := asChild(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.tell(l.Addr().String())
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", o.Addr)
			if err != nil {
				conn.Close()
				continue
			}
			go func() { _, _ = io.Copy(conn, server); conn.Close() }() // an error is an end, too
			go delay(server, conn)
		}
	}()
	p.wait()
}

// A parcel is bytes on their way.
type parcel struct {
	bytes []byte
	due   time.Time
}

// delay copies with the distance added, whatever has come meanwhile.
func delay(to, from net.Conn) {
	defer to.Close()
	parcels := make(chan parcel, 1024)
	go func() {
		defer close(parcels)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			parcels <- parcel{buffer[:n], time.Now().Add(distance)}
		}
	}()
	for p := range parcels {
		sleepExactly(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
}

// sleepExactly is time.Sleep without its rounding up to milliseconds.
func sleepExactly(d time.Duration) {
	if d > 0 {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // a signal cuts it short, which is rare
	}
}
