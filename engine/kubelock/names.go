package kubelock

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"

	coordination "k8s.io/api/coordination/v1"
)

const (
	// maxObject is the longest name of an object.
	maxObject = 253
	// maxSlug is how many characters of a lock's name are kept in the name of its object.
	maxSlug = 60
	// coded begins the names of objects that differ from their locks' names.
	coded = "leasehold-"
)

var (
	dns   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	other = regexp.MustCompile(`[^a-z0-9]+`)
	small = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// objectName returns the name of a lock's Lease. That is the lock's name, if an object may have it.
// Otherwise it is what is readable of that name and 160 bits of its hash.
func objectName(name string) string {
	if len(name) <= maxObject && dns.MatchString(name) && !strings.HasPrefix(name, coded) {
		return name
	}
	slug := strings.Trim(other.ReplaceAllString(strings.ToLower(name), "-"), "-")
	sum := sha256.Sum256([]byte(name))
	return coded + slug[:min(len(slug), maxSlug)] + "-" + small.EncodeToString(sum[:20])
}

// nameOf returns the name of a Lease's lock. It returns false for a Lease that belongs to no lock.
func nameOf(l *coordination.Lease) (name string, ok bool) {
	name, ok = l.Annotations[nameKey]
	if !ok {
		name = l.Name
	}
	return name, objectName(name) == l.Name
}
