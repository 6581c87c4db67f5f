package etcdlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// safeVersions are, by minor version of etcd 3, the first patches in which a user without
// rights cannot revoke leases any more (CVE-2026-33413). Among the older ones, a leader
// that was stuck may revoke leases that were kept alive before 3.4.31 and 3.5.13, and
// revisions may go back after a crash during compaction before 3.4.32 and 3.5.14.
var safeVersions = map[int]int{4: 42, 5: 28, 6: 9}

// Check asks each endpoint for its version and returns warnings for people: versions with
// known defects, and the alarm that stands when there is no space.
func (d *Driver) Check(ctx context.Context) (warnings []string, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	for _, endpoint := range d.client.Endpoints() {
		status, err := d.client.Status(ctx, endpoint)
		if err != nil {
			return warnings, d.explain(ctx, err)
		}
		if w := warnOf(status.Version); w != "" {
			warnings = append(warnings, endpoint+": "+w)
		}
		for _, text := range status.Errors {
			if strings.Contains(text, pb.AlarmType_NOSPACE.String()) {
				warnings = append(warnings, endpoint+": the alarm NOSPACE stands, nothing can be acquired")
			}
		}
	}
	return warnings, nil
}

// warnOf is what people should know of a server's version; "": nothing.
func warnOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 || parts[0] != "3" {
		return ""
	}
	minor, err1 := strconv.Atoi(parts[1])
	digits, _, _ := strings.Cut(parts[2], "-")
	patch, err2 := strconv.Atoi(digits)
	if err1 != nil || err2 != nil {
		return ""
	}
	if minor < 4 {
		return fmt.Sprintf("etcd %s is not supported, 3.4 or newer is needed", version)
	}
	safe, known := safeVersions[minor]
	if !known || patch >= safe {
		return ""
	}
	w := fmt.Sprintf("etcd %s has CVE-2026-33413, by which others may revoke leases: update to 3.%d.%d or newer", version, minor, safe)
	if minor == 4 {
		w += "; 3.4 is at its end of life"
	}
	return w
}
