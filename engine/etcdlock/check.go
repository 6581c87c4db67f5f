package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/rehearsal"
)

// safeVersions are, by minor version of etcd 3, the first patches in which a user without
// rights cannot revoke leases any more (CVE-2026-33413). Among the older ones, a leader
// that was stuck may revoke leases that were kept alive before 3.4.31 and 3.5.13, and
// revisions may go back after a crash during compaction before 3.4.32 and 3.5.14.
var safeVersions = map[int64]int64{4: 42, 5: 28, 6: 9}

// Check asks each endpoint for its version and status, and for the members of the cluster.
// Endpoints without an answer are findings while others answer.
func (d *Driver) Check(ctx context.Context) (found []driver.Finding, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	endpoints := d.client.Endpoints()
	away := 0
	for _, endpoint := range endpoints {
		// A member that hangs must leave time for the others.
		asked, cancel := context.WithTimeout(ctx, askEach)
		status, failed := d.client.Status(asked, endpoint)
		failed = d.explain(asked, failed)
		cancel()
		if failed == nil {
			found = append(found, statusFindings(endpoint, status)...)
			found = append(found, d.userFindings(ctx, endpoint, status.Version)...)
			continue
		}
		away, err = away+1, failed
		found = append(found, driver.Finding{About: driver.AboutServer, Where: endpoint, Level: driver.Weak,
			Text: "it does not answer: " + failed.Error(), Advice: "start it, or take it out of the endpoints"})
	}
	if away == len(endpoints) {
		return nil, err
	}
	if f, ok := d.quorumFinding(ctx); ok {
		found = append(found, f)
	}
	return found, nil
}

// askEach bounds the question to one endpoint.
const askEach = time.Second

func statusFindings(endpoint string, status *clientv3.StatusResponse) []driver.Finding {
	version := driver.Finding{About: driver.AboutVersion, Where: endpoint, Text: "etcd " + status.Version}
	if w := warnOf(status.Version); w != "" {
		version.Level, version.Text = driver.Weak, w
	}
	found := []driver.Finding{version}
	for _, text := range status.Errors {
		if strings.Contains(text, pb.AlarmType_NOSPACE.String()) {
			found = append(found, driver.Finding{About: driver.AboutSpace, Where: endpoint, Level: driver.Unfit,
				Text: "the alarm NOSPACE stands, nothing can be acquired", Advice: "compact, defragment and disarm the alarm"})
		}
	}
	if status.Leader == 0 {
		found = append(found, driver.Finding{About: driver.AboutQuorum, Where: endpoint, Level: driver.Unfit,
			Text: "it has no leader", Advice: "start more than half of the members, and let them reach each other"})
	}
	return found
}

// userFindings warns about a server of 3.4 that has users: once a token has ended, it answers no
// call of a current client. A simple token lasts while it is used; a signed one (JWT) does not.
func (d *Driver) userFindings(ctx context.Context, endpoint, version string) []driver.Finding {
	if d.client.Username == "" || !strings.HasPrefix(version, "3.4.") {
		return nil
	}
	f := driver.Finding{About: driver.AboutVersion, Where: endpoint, Level: driver.Weak,
		Text: "etcd 3.4 with users: once a token has ended, no call of this client is answered", Advice: "update etcd, or let --auth-token-ttl be longer than a client is ever idle"}
	asked, cancel := context.WithTimeout(ctx, askEach)
	defer cancel()
	answer, err := d.client.Authenticate(asked, d.client.Username, d.client.Password)
	switch {
	case err != nil:
		f.Text += "; a login to see whether it signs its tokens (JWT), which end even while they are used, was not answered"
	case strings.Count(answer.Token, ".") == 2: // RFC 7519
		f.Level, f.Advice = driver.Unfit, "update etcd, or let it make simple tokens: --auth-token simple"
		f.Text = "etcd 3.4 signs its tokens (JWT), which end however much they are used: no call of this client is answered then"
	}
	return []driver.Finding{f}
}

// quorumFinding reports how many members may fail. It returns false if the user may not ask.
func (d *Driver) quorumFinding(ctx context.Context) (driver.Finding, bool) {
	asked, cancel := context.WithTimeout(ctx, askEach)
	defer cancel()
	members, err := d.client.MemberList(asked)
	if err != nil {
		return driver.Finding{}, false
	}
	voters := 0
	for _, m := range members.Members {
		if !m.IsLearner {
			voters++
		}
	}
	return driver.QuorumFinding("", voters), true
}

// Rehearse implements [driver.Checker].
func (d *Driver) Rehearse(ctx context.Context) error {
	return rehearsal.Run(ctx, rehearsal.Name(), rehearsal.TTL, d.Claim)
}

// warnOf returns a warning about a server's version, or "".
func warnOf(version string) string {
	v, err := semver.NewVersion(version)
	if err != nil || v.Major != 3 {
		return ""
	}
	if v.Minor < 4 {
		return fmt.Sprintf("etcd %s is not supported, 3.4 or newer is needed", version)
	}
	safe, known := safeVersions[v.Minor]
	if !known || v.Patch >= safe {
		return ""
	}
	w := fmt.Sprintf("etcd %s has CVE-2026-33413, by which others may revoke leases: update to 3.%d.%d or newer", version, v.Minor, safe)
	if v.Minor == 4 {
		w += "; 3.4 is at its end of life"
	}
	return w
}
