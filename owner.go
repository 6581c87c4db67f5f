package leasehold

import (
	"crypto/rand"
	"encoding/base32"
	"sync"
)

// ownerBytes is 160 bits, the length of the tokens on the Redlock page: nobody can guess one,
// and no two claims share one.
const ownerBytes = 20

// owners generates owners. It reads random bytes for many at a time.
type owners struct {
	mu   sync.Mutex
	pool [32 * ownerBytes]byte // guarded by mu
	left int                   // guarded by mu; unused bytes at the end of pool
}

// next returns a new owner of 32 printable characters.
func (o *owners) next() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left == 0 {
		rand.Read(o.pool[:]) // never fails: it ends the program instead
		o.left = len(o.pool)
	}
	random := o.pool[len(o.pool)-o.left:][:ownerBytes]
	o.left -= ownerBytes
	var text [32]byte
	base32.StdEncoding.Encode(text[:], random)
	clear(random)
	return string(text[:])
}
