module github.com/leasehold-go/leasehold/engine/zklock

go 1.26.0

require github.com/leasehold-go/leasehold v0.1.0

require github.com/go-zookeeper/zk v1.0.4
