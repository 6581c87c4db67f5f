package kubelock

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"

	coordination "k8s.io/api/coordination/v1"
)

const (
	// maxObject is how long the name of an object may be.
	maxObject = 253
	// maxSlug is how much of a name is still seen in that of its object.
	maxSlug = 60
	// coded is what the names of objects begin with that are not their locks' own.
	coded = "leasehold-"
)

var (
	dns   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	other = regexp.MustCompile(`[^a-z0-9]+`)
	small = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// objectName is the name of a lock's Lease: the lock's own, where an object may have it, else what
// can be read of it and 160 bits of its hash.
func objectName(name string) string {
	if len(name) <= maxObject && dns.MatchString(name) && !strings.HasPrefix(name, coded) {
		return name
	}
	slug := strings.Trim(other.ReplaceAllString(strings.ToLower(name), "-"), "-")
	sum := sha256.Sum256([]byte(name))
	return coded + slug[:min(len(slug), maxSlug)] + "-" + small.EncodeToString(sum[:20])
}

// nameOf is the name of a Lease's lock; false: it is none's.
func nameOf(l *coordination.Lease) (name string, ok bool) {
	name, ok = l.Annotations[nameKey]
	if !ok {
		name = l.Name
	}
	return name, objectName(name) == l.Name
}
