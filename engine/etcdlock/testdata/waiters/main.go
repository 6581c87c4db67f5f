// Command waiters is one process of a crowd on etcd; see package crowd.
package main

import (
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/crowd"
)

func main() { crowd.Work(etcdlock.OpenURL) }
