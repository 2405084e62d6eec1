// pgx under a strict policy: what is refused and what is not. Arguments: policy HOST PORT DATABASE.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func policyWay(name string, run func(c *pgx.Conn) error) {
	a := os.Args
	c, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s dbname=%s user=postgres sslmode=disable connect_timeout=20", a[2], a[3], a[4]))
	must(err)
	defer c.Close(ctx)
	var refused *pgconn.PgError
	switch err := run(c); {
	case err == nil:
		fmt.Printf("%s\tworks\n", name)
	case errors.As(err, &refused) && refused.Code == "42501":
		fmt.Printf("%s\trefused\n", name)
	default:
		panic(err)
	}
}

func policy() {
	policyWay("as it is, `Begin`, `Query`, and `Exec` with arguments", func(c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1)", 1); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, "SELECT count(*) FROM t")
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		})
	})
	policyWay("as it is, `Exec` without arguments", func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT count(*) FROM t")
		return err
	})
	policyWay("`Query` for everything, BEGIN too", func(c *pgx.Conn) error {
		for _, statement := range []string{"BEGIN", "SELECT count(*) FROM t", "COMMIT"} {
			rows, err := c.Query(ctx, statement)
			if err != nil {
				return err
			}
			rows.Close()
			if rows.Err() != nil {
				return rows.Err()
			}
		}
		return nil
	})
}
