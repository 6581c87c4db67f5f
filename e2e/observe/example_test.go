package observe

import (
	"log"
	"log/slog"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/driver"
)

// The program of docs/observe.md.
func Example() {
	var d driver.Driver                    // any
	metrics, err := leaseholdprom.New(nil) // github.com/leasehold-go/leasehold/adapter/leaseholdprom
	if err != nil {
		log.Fatal(err)
	}
	observer, err := leaseholdotel.New(nil) // github.com/leasehold-go/leasehold/adapter/leaseholdotel
	if err != nil {
		log.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{Trace: leasehold.TraceAll(
		metrics.Trace, observer.Trace, leasehold.LogTrace(slog.Default()),
	)})
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
}
