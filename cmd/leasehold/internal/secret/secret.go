// Package secret keeps the passwords of stores from processes that need none.
package secret

import (
	"os"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/stores"
)

// Environ returns this process's environment without variables that may contain a password.
// Processes that it starts get the password in another way, or not at all.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, stores.PasswordVariable+"=") || strings.HasPrefix(v, "LEASEHOLD_STORE=")
	})
}
