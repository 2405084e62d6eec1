// pgx: the cases, printed. Arguments: HOST PORT DATABASE SSLMODE CA-FILE.
package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var ctx = context.Background()

func config() *pgx.ConnConfig {
	a := os.Args
	dsn := fmt.Sprintf("host=%s port=%s dbname=%s user=app password=secret sslmode=%s application_name=drivers connect_timeout=20", a[1], a[2], a[3], a[4])
	if a[4] != "disable" {
		dsn += " sslrootcert=" + a[5]
	}
	c, err := pgx.ParseConfig(dsn)
	must(err)
	c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { fmt.Println("notice", fields((*pgconn.PgError)(n))) }
	return c
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func fields(e *pgconn.PgError) string { return fmt.Sprintf("%+v", *e) }

func explain(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return fields(e)
	}
	return "not from the server: " + err.Error()
}

func theCase(name string, run func(c *pgx.Conn) (any, error)) { theCaseWith(name, config(), run) }

func theCaseWith(name string, conf *pgx.ConnConfig, run func(c *pgx.Conn) (any, error)) {
	fmt.Println("==", name)
	c, err := pgx.ConnectConfig(ctx, conf)
	must(err)
	result, err := run(c)
	if err != nil {
		fmt.Println("error", explain(err))
	} else {
		fmt.Printf("%v\n", result)
	}
	fmt.Printf("status %c closed %v\n", c.PgConn().TxStatus(), c.IsClosed())
	c.Close(ctx)
}

func all(c interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, text string, args ...any) (any, error) {
	rows, err := c.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("%v", values))
	}
	return fmt.Sprint(rows.CommandTag(), " ", strings.Join(out, "\n")), rows.Err()
}

func query(text string, args ...any) func(c *pgx.Conn) (any, error) {
	return func(c *pgx.Conn) (any, error) { return all(c, text, args...) }
}

func parameters(c *pgx.Conn) (any, error) {
	out := []string{}
	for _, n := range []string{"server_encoding", "client_encoding", "TimeZone", "DateStyle", "standard_conforming_strings", "integer_datetimes", "application_name", "server_version"} {
		out = append(out, n+"="+c.PgConn().ParameterStatus(n))
	}
	return out, nil
}

// Every column by its bytes on the wire, in both formats.
func raw(format int16) func(c *pgx.Conn) (any, error) {
	return func(c *pgx.Conn) (any, error) {
		r := c.PgConn().ExecParams(ctx, "SELECT * FROM kinds", nil, nil, nil, []int16{format})
		out := []string{}
		for _, f := range r.FieldDescriptions() {
			out = append(out, fmt.Sprint(f.Name, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format))
		}
		for r.NextRow() {
			out = append(out, fmt.Sprintf("%q", r.Values()))
		}
		_, err := r.Close()
		return strings.Join(out, "\n"), err
	}
}

func prepared(c *pgx.Conn) (any, error) {
	sd, err := c.Prepare(ctx, "twice", "SELECT $1::int * 2, $2::text")
	if err != nil {
		return nil, err
	}
	out := []string{fmt.Sprint(sd.ParamOIDs, len(sd.Fields))}
	for n := 0; n < 10; n++ {
		var a int
		var b string
		if err := c.QueryRow(ctx, "twice", n, "w").Scan(&a, &b); err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprint(a, b))
	}
	must(c.Deallocate(ctx, "twice"))
	must(c.DeallocateAll(ctx))
	return out, nil
}

func transactions(c *pgx.Conn) (any, error) {
	tx, err := c.Begin(ctx)
	must(err)
	_, err = tx.Exec(ctx, "INSERT INTO item VALUES ($1, 'one', 1.5, NULL)", 401)
	must(err)
	inner, err := tx.Begin(ctx)
	must(err)
	_, err = inner.Exec(ctx, "INSERT INTO item VALUES ($1, 'again', 1.5, NULL)", 401)
	fmt.Println("inner", explain(err))
	_, err = inner.Exec(ctx, "SELECT 1")
	fmt.Println("failed block", explain(err))
	must(inner.Rollback(ctx))
	_, err = tx.Exec(ctx, "INSERT INTO item VALUES (402, 'two', 1.5, NULL)")
	must(err)
	must(tx.Commit(ctx))
	tx, err = c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly})
	must(err)
	_, err = tx.Exec(ctx, "INSERT INTO item VALUES (403, 'three', 1.5, NULL)")
	fmt.Println("read only", explain(err))
	fmt.Println("commit of a failed block", tx.Commit(ctx))
	return all(c, "SELECT id, name FROM item WHERE id > 400 ORDER BY id")
}

func batch(c *pgx.Conn) (any, error) {
	b := &pgx.Batch{}
	for n := 0; n < 100; n++ {
		b.Queue("INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)", 1, n, fmt.Sprint("b", n))
	}
	b.Queue("SELECT count(*), sum(seq) FROM stream WHERE client = 1")
	r := c.SendBatch(ctx, b)
	tags := map[string]int{}
	for n := 0; n < 100; n++ {
		tag, err := r.Exec()
		if err != nil {
			return nil, err
		}
		tags[tag.String()]++
	}
	var count, sum int
	must(r.QueryRow().Scan(&count, &sum))
	return fmt.Sprint(tags, count, sum), r.Close()
}

func batchError(c *pgx.Conn) (any, error) {
	b := &pgx.Batch{}
	b.Queue("INSERT INTO item VALUES ($1, 'a', 1, NULL)", 450)
	b.Queue("INSERT INTO item VALUES ($1, 'b', 1, NULL)", 450)
	b.Queue("INSERT INTO item VALUES ($1, 'c', 1, NULL)", 451)
	r := c.SendBatch(ctx, b)
	for n := 0; n < 3; n++ {
		tag, err := r.Exec()
		if err != nil {
			fmt.Println(n, explain(err))
		} else {
			fmt.Println(n, tag)
		}
	}
	fmt.Println("close", explain(r.Close()))
	return all(c, "SELECT id FROM item WHERE id >= 450 AND id < 460")
}

func pipelined(c *pgx.Conn) (any, error) {
	p := c.PgConn().StartPipeline(ctx)
	text := "INSERT INTO stream (client, seq) VALUES ($1::text::int, $2::text::int)"
	for n := 0; n < 5; n++ {
		p.SendQueryParams(text, [][]byte{[]byte("2"), []byte(fmt.Sprint(n))}, nil, nil, nil)
		must(p.Sync())
	}
	p.SendQueryParams(text, [][]byte{[]byte("2"), []byte("bad")}, nil, nil, nil)
	p.SendQueryParams(text, [][]byte{[]byte("2"), []byte("77")}, nil, nil, nil)
	must(p.Sync())
	p.SendQueryParams(text, [][]byte{[]byte("2"), []byte("88")}, nil, nil, nil)
	must(p.Sync())
	for {
		results, err := p.GetResults()
		if err != nil {
			fmt.Println("error", explain(err))
			continue
		}
		switch r := results.(type) {
		case *pgconn.ResultReader:
			tag, err := r.Close()
			fmt.Println(tag, err)
		case *pgconn.PipelineSync:
			fmt.Println("sync")
		case nil:
			must(p.Close())
			return all(c, "SELECT seq FROM stream WHERE client = 2 ORDER BY 1")
		}
	}
}

func copying(c *pgx.Conn) (any, error) {
	rows := [][]any{}
	for n := 0; n < 1000; n++ {
		rows = append(rows, []any{int32(7), int32(n), fmt.Sprint("w", n), []byte{byte(n)}})
	}
	count, err := c.CopyFrom(ctx, pgx.Identifier{"stream"}, []string{"client", "seq", "word", "data"}, pgx.CopyFromRows(rows))
	fmt.Println(count, err)
	_, err = c.PgConn().CopyFrom(ctx, strings.NewReader("1\t2\nx\t3\n"), "COPY stream (client, seq) FROM STDIN")
	fmt.Println("bad row", explain(err))
	var out bytes.Buffer
	tag, err := c.PgConn().CopyTo(ctx, &out, "COPY (SELECT client, seq, word, data FROM stream ORDER BY 1, 2) TO STDOUT")
	return fmt.Sprintf("%v %x", tag, md5.Sum(out.Bytes())), err
}

func cancelled(c *pgx.Conn) (any, error) {
	go func() {
		other, err := pgx.ConnectConfig(ctx, config())
		must(err)
		defer other.Close(ctx)
		// The query must have begun: an early cancel would be lost.
		for sleeping := 0; sleeping == 0; {
			must(other.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'").Scan(&sleeping))
		}
		must(c.PgConn().CancelRequest(ctx))
	}()
	_, err := c.Exec(ctx, "SELECT pg_sleep(60)")
	fmt.Println("error", explain(err))
	return all(c, "SELECT 'alive'")
}

func singles(c *pgx.Conn) (any, error) {
	tags := map[string]int{}
	for n := 0; n < 50; n++ {
		tag, err := c.Exec(ctx, "INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)", 4, n, "s")
		if err != nil {
			return nil, err
		}
		tags[tag.String()]++
		tag, err = c.Exec(ctx, "INSERT INTO stream (client, seq, word, at) VALUES ($1, $2, $3, $4)", pgx.QueryExecModeSimpleProtocol, 5, n, "it's", time.Unix(int64(n), 0).UTC())
		if err != nil {
			return nil, err
		}
		tags[tag.String()]++
	}
	fmt.Println(tags)
	return all(c, "SELECT client, count(*), sum(seq), min(word), count(at) FROM stream WHERE client IN (4, 5) GROUP BY 1 ORDER BY 1")
}

func atOnce(c *pgx.Conn) (any, error) {
	var all32 sync.WaitGroup
	var lock sync.Mutex
	tags := map[string]int{}
	for client := 40; client < 56; client++ {
		all32.Add(1)
		go func(client int) {
			defer all32.Done()
			mine, err := pgx.ConnectConfig(ctx, config())
			must(err)
			defer mine.Close(ctx)
			for n := 0; n < 50; n++ {
				tag, err := mine.Exec(ctx, "INSERT INTO stream (client, seq, word, data) VALUES ($1, $2, $3, $4)", client, n, "x", []byte{1, 2})
				must(err)
				lock.Lock()
				tags[tag.String()]++
				lock.Unlock()
			}
		}(client)
	}
	all32.Wait()
	fmt.Println(tags)
	return all(c, "SELECT client, count(*), sum(seq), min(encode(data, 'hex')) FROM stream WHERE client BETWEEN 40 AND 55 GROUP BY 1 ORDER BY 1")
}

func large(c *pgx.Conn) (any, error) {
	text := strings.Repeat("0123456789abcdef", 400000)
	var back string
	if err := c.QueryRow(ctx, "SELECT $1::text", text).Scan(&back); err != nil {
		return nil, err
	}
	rows, err := c.Query(ctx, "SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
	must(err)
	count := 0
	for rows.Next() {
		count++
	}
	return fmt.Sprintf("%x %d", md5.Sum([]byte(back)), count), rows.Err()
}

func several(c *pgx.Conn) (any, error) {
	results, err := c.PgConn().Exec(ctx, "SELECT 1; SELECT 'two', 2; SELECT 1/0; SELECT 3").ReadAll()
	for _, r := range results {
		fmt.Println(r.CommandTag, fmt.Sprintf("%s", r.Rows), r.Err != nil)
	}
	return nil, err
}

func settings(c *pgx.Conn) (any, error) {
	_, err := c.Exec(ctx, "SET TIME ZONE 'Asia/Tokyo'")
	must(err)
	fmt.Println(c.PgConn().ParameterStatus("TimeZone"))
	for n := 0; n < 5; n++ {
		fmt.Println(all(c, "SHOW TimeZone"))
	}
	return nil, nil
}

func listening(c *pgx.Conn) (any, error) {
	_, err := c.Exec(ctx, "LISTEN words")
	must(err)
	other, err := pgx.ConnectConfig(ctx, config())
	must(err)
	_, err = other.Exec(ctx, "SELECT pg_notify('words', 'hello')")
	must(err)
	other.Close(ctx)
	within, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	n, err := c.WaitForNotification(within)
	if err != nil {
		return nil, err
	}
	return n.Channel + " " + n.Payload, nil
}

func largeObjects(c *pgx.Conn) (any, error) {
	tx, err := c.Begin(ctx)
	must(err)
	lo := tx.LargeObjects()
	oid, err := lo.Create(ctx, 0)
	must(err)
	object, err := lo.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
	must(err)
	n, err := object.Write(bytes.Repeat([]byte("abc"), 1_000_000))
	must(err)
	_, err = object.Seek(3, 0)
	must(err)
	some := make([]byte, 7)
	_, err = object.Read(some)
	must(err)
	must(object.Truncate(10))
	end, err := object.Seek(0, 2)
	must(err)
	must(lo.Unlink(ctx, oid))
	return fmt.Sprint(n, string(some), end), tx.Commit(ctx)
}

func sameNames(c *pgx.Conn) (any, error) {
	other, err := pgx.ConnectConfig(ctx, config())
	must(err)
	defer other.Close(ctx)
	_, err = c.Prepare(ctx, "mine", "SELECT $1::int + 1")
	must(err)
	_, err = other.Prepare(ctx, "mine", "SELECT $1::text || 'b'")
	must(err)
	for n := 0; n < 6; n++ {
		fmt.Println(all(c, "mine", n))
		fmt.Println(all(other, "mine", fmt.Sprint(n)))
	}
	_, err = c.PgConn().Prepare(ctx, "mine", "SELECT 3", nil)
	var e *pgconn.PgError
	if errors.As(err, &e) {
		fmt.Println(e.Code, e.Message, e.Routine)
	}
	must(c.Deallocate(ctx, "mine"))
	return all(other, "mine", "still")
}

// The statement cache after ALTER TABLE: one error at most, then the new rows.
func changedType(mode pgx.QueryExecMode) func(c *pgx.Conn) (any, error) {
	return func(c *pgx.Conn) (any, error) {
		conf := config()
		conf.DefaultQueryExecMode = mode
		other, err := pgx.ConnectConfig(ctx, conf)
		must(err)
		defer other.Close(ctx)
		_, err = c.Exec(ctx, "DROP TABLE IF EXISTS changing; CREATE TABLE changing AS SELECT 1 AS a")
		must(err)
		for _, text := range []string{"ADD COLUMN b bigint DEFAULT 2", "ALTER COLUMN a TYPE bigint", "DROP COLUMN b"} {
			for n := 0; n < 6; n++ {
				fmt.Println(all(other, "SELECT * FROM changing"))
			}
			_, err = c.Exec(ctx, "ALTER TABLE changing "+text)
			must(err)
			for n := 0; n < 3; n++ {
				result, err := all(other, "SELECT * FROM changing")
				if err != nil {
					var e *pgconn.PgError
					errors.As(err, &e)
					fmt.Println("error", e.Code, e.Message, e.Routine)
				} else {
					fmt.Println(result)
				}
			}
		}
		return nil, nil
	}
}

func isolation(c *pgx.Conn) (any, error) {
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted} {
		tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadOnly, DeferrableMode: pgx.Deferrable})
		must(err)
		fmt.Println(all(tx, "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('transaction_deferrable')"))
		must(tx.Rollback(ctx))
	}
	return nil, nil
}

func batchInBlock(c *pgx.Conn) (any, error) {
	tx, err := c.Begin(ctx)
	must(err)
	b := &pgx.Batch{}
	for n := 0; n < 50; n++ {
		b.Queue("INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)", 91, n, "x")
		b.Queue("SELECT $1::int * 2", n).QueryRow(func(row pgx.Row) error {
			var twice int
			return row.Scan(&twice)
		})
	}
	b.Queue("SET LOCAL work_mem = '3MB'")
	must(tx.SendBatch(ctx, b).Close())
	fmt.Println(all(tx, "SHOW work_mem"))
	must(tx.Rollback(ctx))
	return all(c, "SELECT count(*), current_setting('work_mem') FROM stream WHERE client = 91")
}

func timeouts(c *pgx.Conn) (any, error) {
	_, err := c.Exec(ctx, "SET statement_timeout = 250")
	must(err)
	for n := 0; n < 3; n++ {
		_, err = c.Exec(ctx, "SELECT pg_sleep($1)", 60)
		fmt.Println(explain(err))
	}
	return all(c, "SHOW statement_timeout")
}

func heard(c *pgx.Conn) (any, error) {
	_, err := c.Exec(ctx, "LISTEN a; LISTEN b")
	must(err)
	other, err := pgx.ConnectConfig(ctx, config())
	must(err)
	defer other.Close(ctx)
	for n := 0; n < 20; n++ {
		_, err = other.Exec(ctx, "SELECT pg_notify($1, $2)", string("ab"[n%2]), fmt.Sprint(n))
		must(err)
		_, err = c.Exec(ctx, "SELECT $1::int", n)
		must(err)
	}
	within, done := context.WithTimeout(ctx, 20*time.Second)
	defer done()
	for n := 0; n < 20; n++ {
		note, err := c.WaitForNotification(within)
		if err != nil {
			return nil, err
		}
		fmt.Println(note.Channel, note.Payload)
	}
	_, err = c.Exec(ctx, "UNLISTEN *")
	return nil, err
}

func main() {
	if os.Args[1] == "policy" {
		policy()
		return
	}
	theCase("parameters", parameters)
	theCase("kinds", query("SELECT * FROM kinds"))
	theCase("kinds, text", raw(0))
	theCase("kinds, binary", raw(1))
	theCase("bound", query("SELECT $1::int, $2::text, $3::bytea, $4::int[], $5::int8", nil, "naïve 'quote' \\ back", []byte{0, 255}, []int32{1, 3}, int64(1)<<40))
	theCase("prepared", prepared)
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, mode := range modes {
		conf := config()
		conf.DefaultQueryExecMode = mode
		theCaseWith("mode "+mode.String(), conf, func(c *pgx.Conn) (any, error) {
			for n := 0; n < 3; n++ {
				fmt.Println(all(c, "SELECT $1::int + 1, $2::text", n, "w"))
			}
			_, err := c.Exec(ctx, "INSERT INTO item VALUES ($1, $2, -1, NULL)", 1, "x")
			return nil, err
		})
	}
	theCase("transactions", transactions)
	theCase("syntax", query("SELEKT 1"))
	theCase("position", query("SELECT 'ü', nowhere FROM item WHERE id = $1", 1))
	theCase("not null", query("INSERT INTO item VALUES ($1, NULL, 1, NULL)", 9))
	theCase("foreign key", query("INSERT INTO item VALUES (9, 'x', 1, $1)", 12345))
	theCase("raised", query("SELECT complain($1)", "noise"))
	theCase("notices", query("SELECT remark('hm')"))
	theCase("batch", batch)
	theCase("batch with an error", batchError)
	theCase("pipeline", pipelined)
	theCase("copy", copying)
	theCase("cancelled", cancelled)
	theCase("singles", singles)
	theCase("at once", atOnce)
	theCase("large", large)
	theCase("several statements", several)
	theCase("settings", settings)
	theCase("settings are gone", query("SHOW TimeZone"))
	theCase("listen", listening)
	theCase("large objects", largeObjects)
	theCase("the same names", sameNames)
	for _, mode := range modes[:3] {
		theCase("changed type, mode "+mode.String(), changedType(mode))
	}
	theCase("isolation", isolation)
	theCase("batch in a block", batchInBlock)
	theCase("timeouts", timeouts)
	theCase("heard", heard)
	fmt.Println("== end")
}
