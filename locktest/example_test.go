package locktest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// Of a driver's own tests this is all that the suite needs. Say that package mylock has
// a driver for servers which tests can start on a free port.
func ExampleRun() {
	// In mylock's conformance_test.go:
	//
	//	func TestMain(m *testing.M) { locktest.Main(m, open) }
	//
	//	// open is what a child process does, knowing nothing but the address.
	//	func open(address string) (driver.Driver, error) {
	//		client, err := myclient.Dial(address)
	//		if err != nil {
	//			return nil, err
	//		}
	//		return mylock.New(client, &mylock.Options{Prefix: "test/"})
	//	}
	//
	//	func TestConformance(t *testing.T) {
	//		server := startServer(t) // ended by t.Cleanup
	//		locktest.Run(t, locktest.Harness{
	//			Open: func(t testing.TB) driver.Driver {
	//				client, err := myclient.Dial(server.Address)
	//				if err != nil {
	//					t.Fatal(err)
	//				}
	//				t.Cleanup(func() { client.Close() }) // comes after the driver's Close
	//				d, err := mylock.New(client, &mylock.Options{Prefix: "test/"})
	//				if err != nil {
	//					t.Fatal(err)
	//				}
	//				return d
	//			},
	//			Pause: func(t testing.TB) (resume func()) {
	//				return locktest.PauseProcess(t, server.Process)
	//			},
	//			Restart:    func(t testing.TB) { server.Stop(); server.Start(t) },
	//			FlushState: func(t testing.TB) { server.Stop(); server.Wipe(); server.Start(t) },
	//			Address:    server.Address,
	//		})
	//	}
	//
	// Without a server it is less:
	server := memory.NewServer()
	conformance := func(t *testing.T) {
		locktest.Run(t, locktest.Harness{
			Open:       func(testing.TB) driver.Driver { return server.Connect() },
			FlushState: func(testing.TB) { server.Flush() },
		})
	}
	_ = conformance // go test calls it
	// Output:
}

// A program's tests can use Faulty to see what the program does without an answer.
func ExampleFaulty() {
	link := locktest.NewFaulty(memory.New())
	locks, err := leasehold.New(link, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	link.Next(locktest.OpTry, locktest.LoseReply)
	_, err = locks.Acquire(context.Background(), "orders/42")
	fmt.Println(err) // of unknown outcome: Acquire has cleaned up behind itself

	lease, err := locks.TryAcquire(context.Background(), "orders/42")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Release(context.Background()))
	// Output:
	// leasehold: acquire "orders/42": locktest: link failed
	// <nil>
}
