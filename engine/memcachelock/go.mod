module github.com/leasehold-go/leasehold/engine/memcachelock

go 1.26.0

require github.com/leasehold-go/leasehold v0.1.0
