// Command charts draws what the pages of a folder have measured, in files beside them: a chart for
// each question of users who choose a lock, and curves for growing numbers. It also writes the
// tables of the page beside the folder, which sum the pages up.
//
//	charts FOLDER
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: charts FOLDER")
		os.Exit(2)
	}
	if err := errors.Join(drawAll(os.Args[1], os.Args[1]), summarize(os.Args[1])); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}
