// Package s3lock is Leasehold's driver for S3 and object stores that speak its protocol: caslock on
// the objects of a bucket. A record is an object, replaced by conditional puts (If-None-Match,
// If-Match); its ETag is its version. Nothing is ever deleted. See docs/engines/s3.md, also for
// which stores keep what they promise.
package s3lock
