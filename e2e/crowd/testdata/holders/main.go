// Command holders is one process of a storm: it locks names again and again, with Options.Keep.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/stores"
)

// An event is a line for the parent. Instants are in nanoseconds, by this machine's clock.
type event struct {
	Loop     int    `json:"loop"`
	Name     string `json:"name,omitempty"`
	Token    uint64 `json:"token,omitempty"` // token of a granted lease; 0: the lease before is about to be released
	Called   int64  `json:"called,omitempty"`
	From     int64  `json:"from,omitempty"`
	Until    int64  `json:"until,omitempty"`
	Deadline int64  `json:"deadline,omitempty"`
	Err      string `json:"err,omitempty"`
}

const loops, names = 3, 2

func main() {
	ttl, err := strconv.Atoi(os.Args[2])
	crowd.Check(err)
	d, err := stores.Open(context.Background(), os.Args[1])
	crowd.Check(err)
	locks, err := leasehold.New(d, &leasehold.Options{TTL: time.Duration(ttl) * time.Millisecond, Keep: time.Second})
	crowd.Check(err)
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		if out.Encode(e) != nil {
			os.Exit(0) // the parent has ended
		}
	}
	for i := range loops {
		go func() {
			for {
				for range 1 + rand.N(20) {
					turn(locks, i, say)
				}
				time.Sleep(rand.N(400 * time.Millisecond)) // kept leases stay kept, unless others want them
			}
		}()
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent ends
}

// turn locks a name once.
func turn(locks *leasehold.Locker, loop int, say func(event)) {
	e := event{Loop: loop, Name: fmt.Sprint("kept/", rand.N(names)), Called: time.Now().UnixNano()}
	lease, err := locks.Acquire(context.Background(), e.Name)
	if err != nil {
		e.Err = err.Error()
		say(e)
		time.Sleep(100 * time.Millisecond)
		return
	}
	e.From, e.Token, e.Deadline = time.Now().UnixNano(), lease.Token(), lease.Deadline().UnixNano()
	say(e)
	ended := make(chan int64, 1)
	ignore := context.AfterFunc(lease.Context(), func() { ended <- time.Now().UnixNano() })
	holds := 2 * time.Millisecond
	if rand.N(20) == 0 { // so long that many a stop begins in it
		holds = 300 * time.Millisecond
	}
	time.Sleep(rand.N(holds))
	e.Until = min(time.Now().UnixNano(), e.Deadline)
	if !ignore() {
		e.Until = min(e.Until, <-ended)
	}
	e.Token = 0
	say(e)
	_ = lease.Release(context.Background()) // the parent detects lost leases
}
