package databases

import (
	"io"
	"log"

	"github.com/go-sql-driver/mysql"
)

// Servers that are down are part of the tests.
func init() { _ = mysql.SetLogger(log.New(io.Discard, "", 0)) }
