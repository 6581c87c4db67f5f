// Package quota tests limits across processes: workers of many processes share limits, and some of
// the processes are killed. Memory that the processes share counts how many work at once.
package quota
