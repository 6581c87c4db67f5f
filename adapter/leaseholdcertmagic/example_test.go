package leaseholdcertmagic_test

import (
	"github.com/caddyserver/certmagic"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdcertmagic"
)

// Machines with a common file system have their locks elsewhere, where a machine that has died is
// noticed, and a slow one is not taken for dead.
func Example() {
	var locks *leasehold.Locker // on any engine
	certmagic.Default.Storage = leaseholdcertmagic.New(&certmagic.FileStorage{Path: "/mnt/certificates"}, locks, "certmagic/")
}
