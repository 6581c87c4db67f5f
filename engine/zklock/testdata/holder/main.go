// Command holder holds a lock on ZooKeeper, and writes a line when it is granted, wanted or lost:
//
//	holder HOST:PORT SESSION NAME
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/crowd"
)

func main() {
	session, err := time.ParseDuration(os.Args[2])
	crowd.Check(err)
	d, err := zklock.New(os.Args[1:2], &zklock.Options{SessionTimeout: session})
	crowd.Check(err)
	ttl := d.Features().SessionTTL
	c, err := d.Claim(driver.Request{Resource: os.Args[3], Owner: "holder", TTL: ttl, Queue: true, Wanted: func() { fmt.Println("wanted") }})
	crowd.Check(err)
	_, err = c.Try(context.Background())
	crowd.Check(err)
	fmt.Println("granted")
	for !errors.Is(err, driver.ErrLost) {
		time.Sleep(ttl / 10)
		_, err = c.Renew(context.Background(), ttl)
	}
	fmt.Println("lost")
	select {}
}
