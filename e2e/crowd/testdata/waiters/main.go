// Command waiters is one process of a crowd; see package crowd.
package main

import (
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/stores"
)

func main() { crowd.Work(stores.Open) }
