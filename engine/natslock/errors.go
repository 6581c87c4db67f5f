package natslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do.
var (
	// ErrNoBucket: the bucket does not exist.
	ErrNoBucket = errors.New("natslock: the bucket does not exist, create it by CreateBucket")
	// ErrAuth: the server refuses the user, or the user lacks a right on the bucket's subjects.
	ErrAuth = fmt.Errorf("natslock: %w, check name, password and permissions", driver.ErrDenied)
	// ErrUnreachable: neither a server nor a leader of the bucket answers.
	ErrUnreachable = errors.New("natslock: nobody answers for the bucket, check the servers and that JetStream is enabled")
	// ErrFull: the bucket or the account has no space for another value, or the value is too
	// large for the server.
	ErrFull = fmt.Errorf("natslock: the bucket or the account is %w, raise its limits", driver.ErrFull)
)

// refused are the errors for a user that the server refuses.
var refused = []error{
	nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation,
}

// explain says what an error of the client means.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrAuth) {
		return cause
	}
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrUnsupported):
		return err
	case isMissing(err):
		return fmt.Errorf("%w: %w", ErrNoBucket, err)
	case errors.Is(err, jetstream.ErrInvalidBucketName):
		return fmt.Errorf("natslock: %w: %w", driver.ErrUnsupported, err)
	case errors.Is(err, nats.ErrMaxPayload): // the client does not send such a message
		return fmt.Errorf("%w: %w: %w", ErrFull, caslock.ErrRefused, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), // nor does it send this one
		errors.Is(err, jetstream.ErrNoStreamResponse): // no server could handle it: the bucket has no leader, or is gone
		return fmt.Errorf("%w: %w: %w", ErrUnreachable, caslock.ErrUnsent, err)
	case errors.As(err, &api):
		return explainAPI(api)
	}
	if slices.ContainsFunc(refused, func(one error) bool { return errors.Is(err, one) }) {
		return fmt.Errorf("%w: %w", ErrAuth, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// explainAPI translates an answer that is an error. Only some of these prove that nothing was
// written. A leader that stops may return an error although the others have stored the write.
func explainAPI(api *jetstream.APIError) error {
	const noResources, accountFull, storeFailed, tooLarge, noTTL = 10023, 10002, 10077, 10054, 10166
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence:
		return caslock.ErrChanged
	case noTTL: // the bucket was made anew, or its settings changed
		return fmt.Errorf("%w: %w", caslock.ErrUnsent, api)
	case noResources, accountFull, tooLarge: // checked before anything is written
		return fmt.Errorf("%w: %w: %w", ErrFull, caslock.ErrRefused, api)
	case storeFailed:
		if strings.HasPrefix(api.Description, "maximum ") { // a limit on messages or bytes is checked before too
			return fmt.Errorf("%w: %w: %w", ErrFull, caslock.ErrRefused, api)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, api)
}

// isMissing reports whether a server says that there is no bucket.
func isMissing(err error) bool {
	return errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrStreamNotFound)
}

// inFlight reports whether a write was refused because an earlier write of the key, perhaps of the
// same claim, is undecided: the leader has it, but too few other servers have it.
func inFlight(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// answered reports whether an error is an answer, even if only that nobody listens to the subject.
func answered(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrStreamNotFound)
}
