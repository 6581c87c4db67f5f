package caslock

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// trailLength is the number of nonces in a record: its own and those of the writes before it,
// newest first. So a write is still found after a few others have written.
const trailLength = 16

// newNonce returns a nonce that no other write has.
func newNonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

// trail returns the nonces of a record.
func trail(nonces string) []string { return strings.Fields(nonces) }

// followed returns the trail of a write of nonce on top of another.
func followed(nonce, before string) string {
	all := append([]string{nonce}, trail(before)...)
	return strings.Join(all[:min(len(all), trailLength)], " ")
}

// A parting is a write that ends the lease or place of a claim.
type parting struct{ nonce, on string } // on is the trail of the record that it replaces

// done reports whether one of the writes was done, by the trail of a later record. told reports
// whether the trail can show that.
func done(all []parting, nonces string) (done, told bool) {
	later := trail(nonces)
	told = true
	for _, p := range all {
		if slices.Contains(later, p.nonce) {
			return true, true
		}
		told = told && slices.Contains(later, trail(p.on)[0])
	}
	return false, told
}
