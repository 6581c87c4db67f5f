module github.com/leasehold-go/leasehold/bench

go 1.26.0

require (
	github.com/bsm/redislock v0.9.4
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/leasehold-go/leasehold v0.0.0
	github.com/leasehold-go/leasehold/e2e v0.0.0
	github.com/leasehold-go/leasehold/redislock v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	modernc.org/sqlite v1.61.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

replace (
	github.com/leasehold-go/leasehold => ..
	github.com/leasehold-go/leasehold/e2e => ../e2e
	github.com/leasehold-go/leasehold/redislock => ../redislock
)

// This version is not on the public module proxy, so that go mod tidy fails with it.
exclude github.com/google/pprof v0.0.0-20261016150608-1facf8f91b50

// Nor is this one, which tests of redsync want.
exclude github.com/redis/rueidis/rueidiscompat v1.0.79
