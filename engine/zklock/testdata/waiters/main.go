// Command waiters is one process of a crowd on ZooKeeper; see package crowd.
package main

import (
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/crowd"
)

func main() { crowd.Work(zklock.OpenURL) }
