package s3lock

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

func TestClockFinding(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if f := clockFinding(now, now.Add(time.Second), now); f.Level != driver.Fine {
		t.Errorf("a second apart: %v", f)
	}
	if f := clockFinding(now, now.Add(-time.Minute), now); f.Level != driver.Weak || !strings.Contains(f.Text, "behind ours: no lease ends by it, but at 15 minutes") || f.Advice == "" {
		t.Errorf("a minute apart: %v", f)
	}
}
