// pgx filling kvs(key uuid, value bytea, timestamp timestamptz) by each of its means, timed.
// Arguments: DSN REPETITIONS. Prints lines of: means, rows, milliseconds (the median).
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const insert = `INSERT INTO kvs (key, value, timestamp) VALUES ($1, $2, $3)`

const patience = 2 * time.Second

var ctx = context.Background()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func rows(n int) [][]any {
	all := make([][]any, n)
	for i := range all {
		var key [16]byte
		value := make([]byte, 64)
		_, err := rand.Read(key[:])
		must(err)
		_, err = rand.Read(value)
		must(err)
		all[i] = []any{key, value, time.Now()}
	}
	return all
}

func loop(c *pgx.Conn, all [][]any) {
	for _, row := range all {
		_, err := c.Exec(ctx, insert, row...)
		must(err)
	}
}

func loopTx(c *pgx.Conn, all [][]any) {
	_, err := c.Exec(ctx, "BEGIN")
	must(err)
	loop(c, all)
	_, err = c.Exec(ctx, "COMMIT")
	must(err)
}

func batch(c *pgx.Conn, all [][]any) {
	b := &pgx.Batch{}
	for _, row := range all {
		b.Queue(insert, row...)
	}
	must(c.SendBatch(ctx, b).Close())
}

func values(c *pgx.Conn, all [][]any) {
	text := strings.Builder{}
	text.WriteString("INSERT INTO kvs (key, value, timestamp) VALUES ")
	args := make([]any, 0, 3*len(all))
	for i, row := range all {
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3)
		args = append(args, row...)
	}
	_, err := c.Exec(ctx, text.String(), args...)
	must(err)
}

func copyFrom(c *pgx.Conn, all [][]any) {
	n, err := c.CopyFrom(ctx, pgx.Identifier{"kvs"}, []string{"key", "value", "timestamp"}, pgx.CopyFromRows(all))
	must(err)
	if n != int64(len(all)) {
		panic("CopyFrom stored another number of rows")
	}
}

func main() {
	repetitions, err := strconv.Atoi(os.Args[2])
	must(err)
	c, err := pgx.Connect(ctx, os.Args[1])
	must(err)
	ways := []struct {
		name string
		run  func(*pgx.Conn, [][]any)
	}{{"loop", loop}, {"loop_tx", loopTx}, {"batch", batch}, {"values", values}, {"copy", copyFrom}}
	stored := 0
	for _, n := range []int{30, 100, 500, 1000} {
		for _, way := range ways {
			times := []float64{}
			// A slow disk makes a loop of commits long; one time is enough then.
			for i, start := 0, time.Now(); i <= 1 || i <= repetitions && time.Since(start) < patience; i++ {
				all := rows(n)
				begin := time.Now()
				way.run(c, all)
				// The first one prepares statements.
				if i > 0 {
					times = append(times, float64(time.Since(begin).Microseconds())/1000)
				}
				stored += n
			}
			sort.Float64s(times)
			fmt.Printf("%s %d %.3f\n", way.name, n, times[len(times)/2])
		}
	}
	var found int
	must(c.QueryRow(ctx, "SELECT count(*) FROM kvs").Scan(&found))
	if found != stored {
		panic(fmt.Sprintf("%d rows stored, %d found", stored, found))
	}
}
