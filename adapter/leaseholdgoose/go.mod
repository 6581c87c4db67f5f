module github.com/leasehold-go/leasehold/adapter/leaseholdgoose

go 1.26.0

require (
	github.com/leasehold-go/leasehold v0.1.0
	github.com/pressly/goose/v3 v3.29.0
)

require (
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/sethvargo/go-retry v0.5.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	modernc.org/libc v1.79.0 // indirect
)
