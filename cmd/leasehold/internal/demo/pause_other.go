//go:build !unix

package demo

import (
	"errors"
	"time"
)

func (*process) stopFor(time.Duration, <-chan struct{}, string) error {
	return errors.New("this system cannot stop a process and let it go on")
}
