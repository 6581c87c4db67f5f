package contest

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

const distantPart = "distant"

// Distance is the time that Distant adds to each round trip.
const Distance = 500 * time.Microsecond

// Distant returns the address of a proxy to addr, a host and port. The proxy delays what is sent to
// the server. It is a separate process, so that its goroutines do not compete with others.
func Distant(tb testing.TB, addr string) string {
	tb.Helper()
	var at string
	startChild(tb, distantPart, order{Addr: addr}).hear(&at)
	return at
}

// forward is the proxy.
func forward(p *parent, o order) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := p.tell(l.Addr().String()); err != nil {
		return err
	}
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
			go func() { _, _ = io.Copy(conn, server); conn.Close() }() // an error ends the connection as well
			go delay(server, conn)
		}
	}()
	p.wait()
	return nil
}

// A parcel is data in flight.
type parcel struct {
	bytes []byte
	due   time.Time
}

// delay copies with the added distance, without holding back later data.
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
			parcels <- parcel{buffer[:n], time.Now().Add(Distance)}
		}
	}()
	for p := range parcels {
		sleepExactly(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
}

// sleepExactly is time.Sleep without rounding up to milliseconds.
func sleepExactly(d time.Duration) {
	if d > 0 {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // a signal may shorten it, which is rare
	}
}
