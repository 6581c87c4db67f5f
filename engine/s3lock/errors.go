package s3lock

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. None of them means that a lock was acquired. Each says what to
// do.
var (
	// ErrNoBucket: the bucket does not exist.
	ErrNoBucket = errors.New("s3lock: the bucket does not exist, create it")
	// ErrAuth: the store refuses the keys, or they lack a right on the bucket.
	ErrAuth = fmt.Errorf("s3lock: %w, check keys, region and policy", driver.ErrDenied)
	// ErrClock: the store refuses requests from this machine because its wall clock is wrong.
	ErrClock = errors.New("s3lock: this machine's clock and the store's differ too much, set it")
	// ErrFull: the store, or a quota of the bucket or the user, is full.
	ErrFull = fmt.Errorf("s3lock: the store is %w, make room or raise the quota", driver.ErrFull)
	// ErrSlowDown: the store is overloaded. Outcomes are unknown.
	ErrSlowDown = errors.New("s3lock: the store asks to slow down, or is not available")
	// ErrUnreachable: no object store answers.
	ErrUnreachable = errors.New("s3lock: no store answers, check endpoint and region")
	// ErrDeleted: somebody deleted the object in a bucket with versions. Remove the delete
	// marker to restore the record with its tokens and leases. Without the record tokens would
	// start again, so nothing is granted.
	ErrDeleted = errors.New("s3lock: the object was deleted, remove its delete marker to bring its tokens back")
	// ErrConditions: the store accepts puts whose conditions do not hold. It cannot keep locks.
	ErrConditions = fmt.Errorf("s3lock: the store does not keep to If-None-Match and If-Match: %w", driver.ErrUnsupported)
)

// isCode reports whether err is an answer of the store with one of these codes. Some stores answer
// with a status alone.
func isCode(err error, codes ...string) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	code := api.ErrorCode()
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok && answer.HTTPStatusCode() == http.StatusPreconditionFailed {
		code = "PreconditionFailed"
	}
	return slices.Contains(codes, code)
}

// deleted reports whether err says that a delete marker replaces the object, and returns the
// marker's version if the store names it.
func deleted(err error) (version string, yes bool) {
	answer, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok || answer.Response.Header.Get("x-amz-delete-marker") != "true" {
		return "", false
	}
	return cmp.Or(answer.Response.Header.Get("x-amz-version-id"), "unknown"), true
}

// advice maps codes of the store to errors that say what to do.
var advice = []struct {
	known error
	codes []string
}{
	{ErrNoBucket, []string{"NoSuchBucket"}},
	{ErrAuth, []string{
		"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccountProblem", "AllAccessDisabled",
		"AuthorizationHeaderMalformed", "PermanentRedirect", "Forbidden",
	}},
	{ErrClock, []string{"RequestTimeTooSkewed"}},
	{ErrFull, []string{"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}}, // Ceph's has status 403; the others are MinIO's
	{ErrSlowDown, []string{"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}},
	{ErrConditions, []string{"NotImplemented"}},
}

// explain wraps an error of the client with advice, if there is any. The cause stays in the chain.
func explain(err error) error {
	for _, a := range advice {
		if isCode(err, a.codes...) {
			return fmt.Errorf("%w: %w", a.known, err)
		}
	}
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		switch answer.HTTPStatusCode() {
		case http.StatusInsufficientStorage:
			return fmt.Errorf("%w: %w", ErrFull, err)
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			return fmt.Errorf("%w: %w", ErrSlowDown, err)
		case http.StatusForbidden, http.StatusUnauthorized:
			return fmt.Errorf("%w: %w", ErrAuth, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
