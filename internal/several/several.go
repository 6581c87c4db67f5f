// Package several makes many calls at once, of which some may hang.
package several

import (
	"sync"
	"time"
)

// slow is after how long a call that has not returned may hang: far above a healthy engine's answer.
const slow = 20 * time.Millisecond

// Each makes call for each of n, and returns when all have returned: so many at once as width says, not counting
// those that may hang.
func Each(n, width int, call func(i int)) {
	var done sync.WaitGroup
	room := make(chan struct{}, width)
	for i := range n {
		room <- struct{}{}
		done.Go(func() {
			leave := sync.OnceFunc(func() { <-room })
			hangs := time.AfterFunc(slow, leave)
			call(i)
			hangs.Stop()
			leave()
		})
	}
	done.Wait()
}
