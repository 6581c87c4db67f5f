package main

import "github.com/redis/go-redis/v9/logging"

// init silences the client of Redis, which would write its errors to stderr in addition.
func init() { logging.Disable() }
