// Command charts draws what the pages of a folder have measured, in files beside them: a chart for
// each question of users who choose a lock, and curves for growing numbers.
//
//	charts FOLDER
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: charts FOLDER")
		os.Exit(2)
	}
	if err := drawAll(os.Args[1], os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}
