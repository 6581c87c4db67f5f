package leaseholdprom_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/memory"
)

// A service counts what its locks do, told apart by the part of the name before the first slash.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{
		Registerer: registry,
		Lock:       func(name string) string { return name[:len("orders")] },
	})
	if err != nil {
		panic(err)
	}
	_ = promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // at /metrics

	locks, err := leasehold.New(memory.New(), &leasehold.Options{Trace: metrics.Trace})
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "orders/42", func(context.Context) error { return nil })
	if err != nil {
		panic(err) // with ErrLost: roll back
	}
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if n := m.GetHistogram().GetSampleCount(); n > 0 {
				fmt.Println(f.GetName(), n)
			}
		}
	}
	// Output:
	// leasehold_acquire_seconds 1
	// leasehold_hold_seconds 1
}
