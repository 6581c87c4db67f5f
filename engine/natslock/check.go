package natslock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// Check reports how the bucket is stored.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	ctx, kv, end, err := d.store.begin(ctx, d.store.prefix()+d.store.api("STREAM.INFO"))
	if err != nil {
		return nil, err
	}
	defer end()
	before := time.Now()
	status, err := insist(ctx, kv.Status)
	if err != nil {
		return nil, explain(ctx, err)
	}
	after := time.Now()
	var found []driver.Finding
	if bucket, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		if now := bucket.StreamInfo().TimeStamp; !now.IsZero() { // servers before 2.10 do not send it
			found = append(found, d.clockFinding(before, now, after))
		}
		found = append(found, keeping(&bucket.StreamInfo().Config)...)
	}
	for _, monitor := range d.monitors {
		found = append(found, syncing(ctx, monitor))
	}
	if status.LimitMarkerTTL() == 0 {
		found = append(found, weak(driver.AboutSpace, "the bucket has no limit marker TTL: what dead processes held is never removed",
			"make the bucket by CreateBucket, on NATS 2.11 or newer"))
	}
	return found, nil
}

// monitorBound bounds the question to a server's monitoring endpoint, so that one that hangs leaves
// time for the others.
const monitorBound = time.Second

// syncing reports how often a server syncs its files, according to its monitoring.
func syncing(ctx context.Context, monitor string) driver.Finding {
	ctx, cancel := context.WithTimeout(ctx, monitorBound)
	defer cancel()
	var says struct {
		Config struct {
			StoreDir     string        `json:"store_dir"`
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	}
	err := getJSON(ctx, "http://"+monitor+"/jsz", &says)
	f := driver.Finding{About: driver.AboutPersistence, Where: monitor, Text: "it syncs every write"}
	switch {
	case err == nil && says.Config.StoreDir == "":
		err = errors.New("the answer is not that of a server with JetStream")
		fallthrough
	case err != nil:
		f.Level, f.Text, f.Advice = driver.Weak, "how often it syncs its files is not known: "+err.Error(), "see the option monitor of the URL"
	case !says.Config.SyncAlways:
		f.Level, f.Advice = driver.Weak, "set sync_interval: always in its jetstream {}"
		f.Text = fmt.Sprintf("it syncs its files every %v: a power loss forgets the leases since, and lets a second holder in", says.Config.SyncInterval)
	}
	return f
}

func getJSON(ctx context.Context, url string, to any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	const most = 1 << 20
	return json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(to)
}

func weak(about, text, advice string) driver.Finding {
	return driver.Finding{About: about, Level: driver.Weak, Text: text, Advice: advice}
}

// keeping reports how a bucket stores what is written.
func keeping(config *jetstream.StreamConfig) []driver.Finding {
	files := driver.Finding{About: driver.AboutPersistence, Text: "the bucket is kept in files"}
	if config.Storage == jetstream.MemoryStorage {
		files = weak(driver.AboutPersistence, "the bucket is in memory: when its servers restart, all leases and fences are forgotten", "keep it in files")
	}
	replicas := driver.Finding{About: driver.AboutReplicas, Text: fmt.Sprintf("the bucket has %d replicas", config.Replicas)}
	if config.Replicas == 1 {
		replicas = weak(driver.AboutReplicas, "the bucket has one replica: it is away while its server is, and lost with its disk", "let it have three")
	}
	found := []driver.Finding{files, replicas}
	if config.FirstSeq <= 1 {
		found = append(found, weak(driver.AboutPersistence, "the bucket numbers its messages from 1: when it is deleted and made anew, fences repeat",
			"make it by CreateBucket, or by opening its URL, while nothing uses it"))
	}
	if config.MaxAge > 0 {
		found = append(found, weak(driver.AboutEviction,
			fmt.Sprintf("the bucket forgets every value after %v: longer leases are refused", config.MaxAge), "set no maximum age"))
	}
	if config.Discard == jetstream.DiscardOld && (config.MaxBytes > 0 || config.MaxMsgs > 0) {
		found = append(found, weak(driver.AboutEviction, "the bucket drops old values when it is full: leases end early", "let it discard new ones"))
	}
	return found
}

// clockFinding says what depends on the server's clock. With values that live for an hour or a day,
// the default, nothing does.
func (d *Driver) clockFinding(before, now, after time.Time) driver.Finding {
	if d.store.serverClock {
		return driver.ClockFinding("", before, now, after)
	}
	return caslock.ClockFinding(before, now, after)
}

// Rehearse implements [driver.Checker].
func (d *Driver) Rehearse(ctx context.Context) error {
	return rehearsal.Run(ctx, rehearsal.Name(), rehearsal.TTL, d.Claim)
}
