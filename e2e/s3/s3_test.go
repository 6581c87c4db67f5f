package s3

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite, whose address is an endpoint.
func TestMain(m *testing.M) {
	locktest.Main(m, func(endpoint string) (driver.Driver, error) {
		client, _ := connect(endpoint)
		return onBucket(client, minTTL, poll)
	})
}

// connect returns a client of its own, with the retries that it has by default, and closes it at
// the end.
func connect(endpoint string) (_ *s3.Client, close func()) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider(servers.S3Key, servers.S3Secret, ""),
	}), transport.CloseIdleConnections
}

// poll is how often is asked who has a bucket next door.
const poll = 250 * time.Millisecond

// minTTL is shorter than is sensible far away.
const minTTL = 100 * time.Millisecond

func onBucket(client *s3.Client, minTTL, poll time.Duration) (driver.Driver, error) {
	return s3lock.New(client, "locks", &s3lock.Options{Options: caslock.Options{MinTTL: minTTL, Poll: poll}})
}

func open(t testing.TB, endpoint string) driver.Driver { return polling(t, endpoint, minTTL, poll) }

func polling(t testing.TB, endpoint string, minTTL, poll time.Duration) driver.Driver {
	t.Helper()
	client, close := connect(endpoint)
	t.Cleanup(close)
	d, err := onBucket(client, minTTL, poll)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// late: who comes when a lease is over watches it for a TTL of his own.
const late = 3 * time.Second

func harness(s *servers.S3) locktest.Harness {
	return locktest.Harness{
		Open:    func(t testing.TB) driver.Driver { return open(t, s.Endpoint()) },
		Address: s.Endpoint(),
		Pause:   func(testing.TB) (resume func()) { return s.Pause() },
		Restart: func(testing.TB) {
			s.Kill()
			s.Begin()
			s.Ready()
		},
		NoLossNotice: true, Late: late, CallGoroutines: 6, // the client has two for each connection
	}
}

func TestConformance(t *testing.T) {
	servers.OnlyWithAll(t)
	apart.Run(t, func(t *testing.T) { locktest.Run(t, harness(servers.StartS3(t))) })
}

// basics are the cases that run always: one of each kind of call, and real processes.
var basics = []string{
	"OneHolder", "OneOfManyWins", "NamesAreDistinct", "ExpiresAfterItsTTL", "OrderOfFirstTry", "ReleaseTwice", "RenewKeepsTheGrant", "Resume",
	"FenceGrowsAfterEviction", "SmallestLimitCounts", "QueuedReadersFollowWriter", "InspectShowsWaitersInOrder", "ListHasPages", "LingerHoldsForOthers",
	"NoteIsReplaced", "ReplyLostOnTry", "KilledHolderFreesWithinTheTTL",
}

func TestBasics(t *testing.T) {
	t.Parallel()
	h := harness(servers.StartS3(t))
	for _, c := range locktest.Cases() {
		if slices.Contains(basics, c.Name) && !c.Alone {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				c.Run(t, h)
			})
		}
	}
}

// fake is another's idea of the protocol, whose clock is off by a day.
func fake(t testing.TB) (endpoint string) {
	t.Helper()
	store := s3mem.New()
	if err := store.CreateBucket("locks"); err != nil {
		t.Fatal(err)
	}
	yesterday := gofakes3.FixedTimeSource(time.Now().Add(-24 * time.Hour))
	web := httptest.NewUnstartedServer(gofakes3.New(store, gofakes3.WithTimeSource(yesterday), gofakes3.WithTimeSkewLimit(0)).Server())
	web.Config.ErrorLog = log.New(io.Discard, "", 0) // it says much
	web.Start()
	t.Cleanup(web.Close)
	return web.URL
}

func TestConformanceOfAnother(t *testing.T) {
	servers.OnlyWithAll(t)
	apart.Run(t, func(t *testing.T) {
		endpoint := fake(t)
		locktest.Run(t, locktest.Harness{
			Open:         func(t testing.TB) driver.Driver { return open(t, endpoint) },
			NoLossNotice: true, Late: late, CallGoroutines: 10,
		})
	})
}

// Waiters are not told: histories are of few operations. Leases last for longer than a call takes on a busy
// machine, which would do nothing but let them end.
const enough, inHistories, often = 30, 2 * time.Second, 100 * time.Millisecond

func TestS3IsLinearizable(t *testing.T) {
	t.Parallel()
	endpoint := servers.StartS3(t).Endpoint()
	linear.CheckOf(t, enough, func(t testing.TB) driver.Driver { return polling(t, endpoint, inHistories, often) })
}

func TestAnotherIsLinearizable(t *testing.T) {
	t.Parallel()
	endpoint := fake(t)
	linear.CheckOf(t, enough, func(t testing.TB) driver.Driver { return polling(t, endpoint, inHistories, often) })
}

// urlOf is a URL for keys on an endpoint.
func urlOf(user, bucket, endpoint string) string {
	return "s3://" + user + "@" + bucket + "/leasehold?region=us-east-1&endpoint=" + url.QueryEscape(endpoint)
}
