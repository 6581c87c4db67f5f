// Package s3_test compares Leasehold on an object store with the lock that everybody writes by hand:
// a put with If-None-Match, and a delete.
package s3_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The locks that are compared.
const (
	ours   = "leasehold"
	byHand = "put + delete"
)

const polling = 500 * time.Millisecond

var engine = contest.Engine{Name: "S3", Competitors: []contest.Competitor{
	{Name: ours, Open: openOurs, Polls: polling},
	{Name: byHand, Open: openByHand, Polls: polling},
}}

func TestMain(m *testing.M) { engine.Main(m) }

// counted are the requests of a client, by what they cost.
type counted struct{ puts, gets, deletes atomic.Int64 }

// RoundTrip implements http.RoundTripper.
func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodPut:
		c.puts.Add(1)
	case http.MethodDelete:
		c.deletes.Add(1)
	default:
		c.gets.Add(1)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (c *counted) all() int64 { return c.puts.Load() + c.gets.Load() + c.deletes.Load() }

func (c *counted) client(endpoint string) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true, HTTPClient: &http.Client{Transport: c},
		Credentials: credentials.NewStaticCredentialsProvider(servers.S3Key, servers.S3Secret, ""),
	})
}

func openOurs(endpoint string) (*contest.Locker, error) { return oursCounting(endpoint, new(counted)) }

func oursCounting(endpoint string, c *counted) (*contest.Locker, error) {
	d, err := s3lock.New(c.client(endpoint), "locks", nil)
	if err != nil {
		return nil, err
	}
	l, err := contest.Leasehold(d, nil)
	if err != nil {
		return nil, err
	}
	l.Commands = c.all
	return l, nil
}

func openByHand(endpoint string) (*contest.Locker, error) {
	return byHandCounting(endpoint, new(counted))
}

// byHandCounting has the lock that never ends when its holder dies, and has no fence.
func byHandCounting(endpoint string, c *counted) (*contest.Locker, error) {
	client := c.client(endpoint)
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		key := aws.String("by-hand/" + name)
		for {
			_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("locks"), Key: key, Body: strings.NewReader("{}"), IfNoneMatch: aws.String("*")})
			if err == nil {
				return contest.Held{Unlock: func() error {
					_, err := client.DeleteObject(context.Background(), &s3.DeleteObjectInput{Bucket: aws.String("locks"), Key: key})
					return err
				}}, nil
			}
			var api smithy.APIError
			if !errors.As(err, &api) || api.ErrorCode() != "PreconditionFailed" {
				return contest.Held{}, err
			}
			select {
			case <-time.After(polling):
			case <-ctx.Done():
				return contest.Held{}, context.Cause(ctx)
			}
		}
	}
	return &contest.Locker{Lock: lock, Commands: c.all}, nil
}

// BenchmarkS3 starts one versitygw on the same machine.
func BenchmarkS3(b *testing.B) {
	server := servers.StartS3(b)
	contest.Server("versitygw")
	engine.CPU = func() time.Duration { return crowd.ProcessCPU(b, server.Pid()) }
	contest.Run(b,
		contest.Part{Name: "Alone", Run: func(b *testing.B) {
			s := engine.Alone(b, server.Endpoint(), byHand, byHand, ours)
			contest.AtMost("alone: requests a cycle", s.Commands(ours), 2.1)
		}},
		contest.Part{Name: "Price", Run: func(b *testing.B) { price(b, server.Endpoint()) }},
	)
}

// List prices of S3 Standard in us-east-1, in dollars for a million requests. Deletes cost nothing.
// Source: https://aws.amazon.com/s3/pricing/, "Requests & data retrievals": $0.005 for 1,000 PUTs and
// $0.0004 for 1,000 GETs.
const putPrice, getPrice = 5.0, 0.4

// price is what a million uncontended cycles cost.
func price(b *testing.B, endpoint string) {
	const cycles = 200
	t := contest.NewTable("S3: requests of an uncontended cycle, and dollars for a million of them (S3 Standard, us-east-1, aws.amazon.com/s3/pricing)",
		"lock", "puts", "gets", "deletes", "dollars")
	for _, l := range []struct {
		name string
		open func(string, *counted) (*contest.Locker, error)
	}{{byHand, byHandCounting}, {ours, oursCounting}} {
		var c counted
		locker, err := l.open(endpoint, &c)
		if err != nil {
			b.Fatal(err)
		}
		var s contest.Section
		for round := range 2 { // the first one also proves the store
			if round == 1 {
				c.puts.Store(0)
				c.gets.Store(0)
				c.deletes.Store(0)
			}
			if _, err := contest.Cycle(locker.Lock, "priced "+l.name, &s, cycles); err != nil {
				b.Fatal(err)
			}
		}
		per := func(n *atomic.Int64) float64 { return float64(n.Load()) / cycles }
		t.Row(l.name, per(&c.puts), per(&c.gets), per(&c.deletes), per(&c.puts)*putPrice+per(&c.gets)*getPrice)
		if locker.Close != nil {
			locker.Close()
		}
	}
}
