// Command waiters has so many wait for the lock "wanted" on ZooKeeper, each at the ensemble:
//
//	waiters HOST:PORT,... COUNT SESSION
//
// It writes a line when all of them wait, and one when all have been served, in turn. At each
// line that it reads in between it writes the CPU time that it has used so far.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/zklock"
)

func main() {
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	session, err := time.ParseDuration(os.Args[3])
	check(err)
	d, err := zklock.New(strings.Split(os.Args[1], ","), &zklock.Options{SessionTimeout: session})
	check(err)
	queued := make(chan struct{}, 10*count) // again after each session
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var served sync.WaitGroup
	for range count {
		locks, err := leasehold.New(d, &leasehold.Options{Trace: &leasehold.Trace{Queued: func(string) { queued <- struct{}{} }}})
		check(err)
		served.Go(func() { check(locks.Do(ctx, "wanted", func(context.Context) error { return nil })) })
	}
	for range count {
		<-queued
	}
	fmt.Println("waiting")
	go tellTimes()
	served.Wait()
	fmt.Println("served")
	check(d.Close())
}

func tellTimes() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		fmt.Println(time.Duration(u.Utime.Nano() + u.Stime.Nano()))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
