"""psycopg and asyncpg under a strict policy: what is refused and what is not. Arguments: DRIVER HOST PORT DATABASE."""
import asyncio
import sys

import asyncpg
import psycopg

driver, host, port, database = sys.argv[1:5]
DSN = f"host={host} port={port} dbname={database} user=postgres sslmode=disable gssencmode=disable"


def way(name, run):
    try:
        run()
        print(f"{name}\tworks")
    except Exception as error:
        if getattr(error, "sqlstate", None) != "42501":
            raise
        print(f"{name}\trefused")


def rows(connection, **options):
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (%s)", (1,), **options)
        connection.execute("SELECT a FROM t WHERE a = %s", (1,), **options)


def with_parameters():
    with psycopg.connect(DSN, autocommit=True) as connection:
        rows(connection)


def without_parameters(**options):
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute("SELECT count(*) FROM t", **options)


def prepared():
    with psycopg.connect(DSN, autocommit=True, prepare_threshold=0) as connection:
        rows(connection)
        connection.execute("SELECT count(*) FROM t")


def pipeline():
    with psycopg.connect(DSN, autocommit=True) as connection, connection.pipeline():
        rows(connection)
        connection.execute("SELECT count(*) FROM t").fetchall()


def asynchronous(run, **options):
    async def connected():
        connection = await asyncpg.connect(host=host, port=int(port), database=database, user="postgres", ssl=False, **options)
        try:
            await run(connection)
        finally:
            await connection.close()

    return lambda: asyncio.run(connected())


async def with_arguments(connection):
    async with connection.transaction():
        await connection.execute("INSERT INTO t VALUES ($1)", 1)
        await connection.fetch("SELECT count(*) FROM t")


async def without_arguments(connection):
    await connection.execute("SELECT count(*) FROM t")


async def fetches(connection):
    for statement in ["BEGIN", "SELECT count(*) FROM t", "COMMIT"]:
        await connection.fetch(statement)


def pooled(**options):
    async def run():
        async with asyncpg.create_pool(
            host=host, port=int(port), database=database, user="postgres", ssl=False, min_size=1, max_size=1, **options
        ) as pool:
            async with pool.acquire() as connection:
                await with_arguments(connection)

    return lambda: asyncio.run(run())


async def no_reset(_):
    pass


if driver == "psycopg":
    way("as it is, statements with parameters", with_parameters)
    way("as it is, a statement without parameters", without_parameters)
    way("`prepare_threshold=0`", prepared)
    way("within `connection.pipeline()`", pipeline)
else:
    way("as it is, `fetch()`, and `execute()` with arguments", asynchronous(with_arguments))
    way("as it is, `execute()` without arguments", asynchronous(without_arguments))
    way("`fetch()` for everything, BEGIN too", asynchronous(fetches))
    way("its pool as it is", pooled())
    way("its pool with a `reset` of one's own", pooled(reset=no_reset))
