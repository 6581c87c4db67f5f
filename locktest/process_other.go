//go:build !unix

package locktest

import (
	"errors"
	"os"
)

func stopProcess(*os.Process) error   { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }
