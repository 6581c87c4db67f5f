package kubelock

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

// Check reports the server's version, as far as the user may know, and the difference of its
// clock, which its answers give in seconds. It cannot report who else may read and write the
// Leases.
func (d *Driver) Check(ctx context.Context) ([]driver.Finding, error) {
	sender := d.leases.sender
	req, err := http.NewRequestWithContext(quiet(ctx), http.MethodGet, sender.Get().AbsPath("/version").URL().String(), nil)
	if err != nil {
		return nil, explain(err)
	}
	before := time.Now()
	resp, err := sender.Client.Do(req)
	after := time.Now()
	if err != nil {
		return nil, explain(err)
	}
	defer resp.Body.Close()
	var found []driver.Finding
	if now, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		found = append(found, caslock.ClockFinding(before, now.Add(time.Second/2), after))
	}
	var server struct{ GitVersion string }
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&server) != nil {
		return found, nil // locks do not need this right
	}
	return append(found, driver.Finding{About: driver.AboutVersion, Text: "Kubernetes " + server.GitVersion}), nil
}
