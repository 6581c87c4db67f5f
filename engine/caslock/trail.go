package caslock

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// trailLength is how many nonces a record has: its own, and those of the writes before, newest first. So a write
// that was done is found below what a few others have written since.
const trailLength = 16

// newNonce is one that no other write has.
func newNonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

// trail is the nonces of a record.
func trail(nonces string) []string { return strings.Fields(nonces) }

// followed is the trail of a write of nonce upon another.
func followed(nonce, before string) string {
	all := append([]string{nonce}, trail(before)...)
	return strings.Join(all[:min(len(all), trailLength)], " ")
}

// A parting is a write that gives up what a claim has.
type parting struct{ nonce, on string } // on: the trail of what it replaces

// done reports whether one of the writes was done, as far as the trail of a later record tells, and whether
// it does tell.
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
