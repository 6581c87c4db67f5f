package databases

import (
	"io"
	"log"

	"github.com/go-sql-driver/mysql"
)

// init silences the client, because tests stop servers.
func init() { _ = mysql.SetLogger(log.New(io.Discard, "", 0)) }
