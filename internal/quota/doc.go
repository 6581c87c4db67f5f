// Package quota has workers of many processes share limits, kills some of them, and counts how many
// work at once in memory that the processes share.
package quota
