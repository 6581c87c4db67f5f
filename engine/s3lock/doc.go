// Package s3lock is Leasehold's driver for S3 and compatible object stores: caslock on the
// objects of a bucket. A record is an object, replaced by conditional puts (If-None-Match,
// If-Match), and its ETag is its version. Nothing is ever deleted. See docs/engines/s3.md, also
// for the stores that are suitable.
package s3lock
