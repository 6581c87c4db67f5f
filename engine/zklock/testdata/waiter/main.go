// Command waiter waits for a shared lock on ZooKeeper, and writes a line for each answer and each wake-up:
//
//	waiter HOST:PORT SESSION NAME WEIGHT
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/crowd"
)

func main() {
	session, err := time.ParseDuration(os.Args[2])
	crowd.Check(err)
	weight, err := strconv.Atoi(os.Args[4])
	crowd.Check(err)
	d, err := zklock.New(os.Args[1:2], &zklock.Options{SessionTimeout: session})
	crowd.Check(err)
	c, err := d.Claim(driver.Request{Resource: os.Args[3], Owner: "waiter", TTL: d.Features().SessionTTL, Queue: true, Mode: driver.Shared, Weight: weight})
	crowd.Check(err)
	for {
		_, err = c.Try(context.Background())
		busy, ok := errors.AsType[*driver.Busy](err)
		if !ok {
			crowd.Check(err)
			break
		}
		fmt.Println("refused")
		select {
		case <-busy.Wake:
			fmt.Println("woken with", len(busy.Granted), "grants")
		case <-time.After(busy.Retry):
		}
	}
	fmt.Println("granted")
	select {}
}
