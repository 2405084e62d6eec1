"""asyncpg: the cases, printed. Arguments: HOST PORT DATABASE SSLMODE CA-FILE."""

import asyncio
import hashlib
import io
import ssl
import sys

import asyncpg

host, port, database, sslmode, ca = sys.argv[1:6]


async def connect(**more):
    tls = ssl.create_default_context(cafile=ca) if sslmode != "disable" else False
    return await asyncpg.connect(
        host=host, port=int(port), database=database, user="app", password="secret", ssl=tls,
        server_settings={"application_name": "drivers"}, timeout=20, **more,
    )


def fields(error):
    names = ["severity", "sqlstate", "message", "detail", "hint", "position", "context", "schema_name", "table_name",
             "column_name", "data_type_name", "constraint_name", "server_source_file", "server_source_function"]
    return {n: getattr(error, n) for n in names if getattr(error, n, None) is not None}


async def case(name, run, **more):
    print("==", name)
    conn = await connect(**more)
    conn.add_log_listener(lambda _, message: print("notice", fields(message)))
    try:
        print(await run(conn))
    except asyncpg.PostgresError as error:
        print("error", type(error).__name__, fields(error))
    print("in transaction", conn.is_in_transaction())
    await conn.close()


async def parameters(conn):
    s = conn.get_settings()
    return [s.server_encoding, s.client_encoding, s.TimeZone, s.DateStyle, s.standard_conforming_strings,
            s.application_name, conn.get_server_version().major]


async def kinds(conn):
    return [tuple(r) for r in await conn.fetch("SELECT * FROM kinds")]


async def bound(conn):
    return tuple(await conn.fetchrow(
        "SELECT $1::int, $2::text, $3::bytea, $4::int[], $5::int8, $6::text[]",
        None, "naïve 'quote' \\ back", b"\x00\xff", [1, None, 3], 2**40, ["a", None, "b,c"],
    ))


async def prepared(conn):
    statement = await conn.prepare("SELECT $1::int * 2 AS twice, $2::text AS word")
    seen = [tuple(await statement.fetchrow(n, "w")) for n in range(10)]
    attributes = [(a.name, a.type.name) for a in statement.get_attributes()]
    return seen, attributes, [p.name for p in statement.get_parameters()], statement.get_statusmsg()


async def composite(conn):
    # Makes the driver look the type up in the catalogue.
    await conn.execute("DO $$ BEGIN CREATE TYPE pair AS (a int, b text); EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    return tuple(await conn.fetchval("SELECT ROW(1, 'x')::pair"))


async def transactions(conn):
    async with conn.transaction():
        await conn.execute("INSERT INTO item VALUES ($1, $2, 1.5, NULL)", 101, "one")
        try:
            async with conn.transaction():
                await conn.execute("INSERT INTO item VALUES ($1, $2, 1.5, NULL)", 101, "again")
        except asyncpg.UniqueViolationError as error:
            print("inner", fields(error))
        await conn.execute("INSERT INTO item VALUES ($1, $2, 1.5, NULL)", 102, "two")
    outer = conn.transaction(isolation="serializable", readonly=True)
    await outer.start()
    print(await conn.fetchval("SHOW transaction_isolation"), await conn.fetchval("SHOW transaction_read_only"))
    await outer.rollback()
    return [tuple(r) for r in await conn.fetch("SELECT * FROM item WHERE id > 100 ORDER BY id")]


def statement(text, *values):
    async def run(conn):
        return await (conn.fetch(text, *values) if values else conn.execute(text))
    return run


async def copy(conn):
    rows = [(7, n, None if n % 3 else f"w\t{n}\\") for n in range(1000)]
    print(await conn.copy_records_to_table("stream", records=rows, columns=["client", "seq", "word"]))
    text = io.BytesIO(b"8,1,x\n8,2,\n")
    print(await conn.copy_to_table("stream", source=text, columns=["client", "seq", "word"], format="csv"))
    out = io.BytesIO()
    print(await conn.copy_from_query("SELECT client, seq, word FROM stream WHERE seq < 5 ORDER BY 1, 2", output=out))
    print(out.getvalue())
    out = io.BytesIO()
    print(await conn.copy_from_table("stream", output=out, format="binary", columns=["client", "seq"]))
    return len(out.getvalue())


async def copy_bad(conn):
    return await conn.copy_to_table("stream", source=io.BytesIO(b"1\t2\nx\t3\n"), columns=["client", "seq"])


async def cancelled(conn):
    try:
        await conn.execute("SELECT pg_sleep(60)", timeout=0.5)
    except asyncio.TimeoutError:
        print("timed out")
    return await conn.fetchval("SELECT 'alive'")


async def many(conn):
    rows = [(3, n, f"m{n}", bytes([n % 256])) for n in range(500)]
    await conn.executemany("INSERT INTO stream (client, seq, word, data) VALUES ($1, $2, $3, $4)", rows)
    try:
        await conn.executemany("INSERT INTO item VALUES ($1, $2, 1, NULL)", [(150, "a"), (150, "b"), (152, "c")])
    except asyncpg.PostgresError as error:
        print(fields(error))
    print([tuple(r) for r in await conn.fetch("SELECT * FROM item WHERE id BETWEEN 150 AND 159")])
    return [tuple(r) for r in await conn.fetch("SELECT * FROM stream WHERE client = 3 ORDER BY seq")]


async def singles(conn):
    tags = {await conn.execute("INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)", 4, n, "s") for n in range(50)}
    tags |= {await conn.execute(f"INSERT INTO stream (client, seq, word) VALUES (5, {n}, 'l')") for n in range(50)}
    rows = await conn.fetch("SELECT client, count(*), sum(seq) FROM stream WHERE client IN (4, 5) GROUP BY 1 ORDER BY 1")
    return tags, [tuple(r) for r in rows]


async def at_once(conn):
    async def one(client):
        mine = await connect()
        try:
            return [await mine.execute("INSERT INTO stream (client, seq) VALUES ($1, $2)", client, n) for n in range(50)]
        finally:
            await mine.close()
    tags = await asyncio.gather(*(one(client) for client in range(20, 30)))
    rows = await conn.fetch("SELECT client, count(*), sum(seq) FROM stream WHERE client BETWEEN 20 AND 29 GROUP BY 1 ORDER BY 1")
    return {t for some in tags for t in some}, [tuple(r) for r in rows]


async def large(conn):
    text = "0123456789abcdef" * 400_000
    back = await conn.fetchval("SELECT $1::text", text)
    rows = await conn.fetch("SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
    return hashlib.md5(back.encode()).hexdigest(), len(rows)


async def cursors(conn):
    seen = []
    async with conn.transaction():
        async for record in conn.cursor("SELECT * FROM generate_series(1, 25)", prefetch=4):
            seen.append(record[0])
        cursor = await conn.cursor("SELECT * FROM generate_series(1, 25)")
        await cursor.forward(10)
        seen.append([r[0] for r in await cursor.fetch(3)])
    return seen


async def changed_type(conn):
    await conn.execute("DROP TABLE IF EXISTS changing; CREATE TABLE changing AS SELECT 1 AS a")
    statement = await conn.prepare("SELECT * FROM changing")
    print(tuple(await statement.fetchrow()))
    return [tuple(r) for r in await conn.fetch("SELECT * FROM changing")]


async def reset(conn):
    await conn.execute("SET TIME ZONE 'Asia/Tokyo'")
    print(await conn.fetchval("SHOW TimeZone"))
    await conn.reset()
    return await conn.fetchval("SHOW TimeZone")


async def listening(conn):
    heard = asyncio.get_running_loop().create_future()
    await conn.add_listener("words", lambda _c, _pid, channel, payload: heard.set_result((channel, payload)))
    other = await connect()
    await other.execute("NOTIFY words, 'hello'")
    await other.close()
    return await asyncio.wait_for(heard, 10)


async def pooled(_conn):
    tls = ssl.create_default_context(cafile=ca) if sslmode != "disable" else False
    async with asyncpg.create_pool(host=host, port=int(port), database=database, user="app", password="secret",
                                   ssl=tls, min_size=2, max_size=4) as pool:
        return await asyncio.gather(*(pool.fetchval("SELECT $1::int + 1", n) for n in range(20)))


async def altered(conn):
    """The statement cache after ALTER TABLE: the driver prepares again by itself, outside of transactions."""
    await conn.execute("DROP TABLE IF EXISTS altered; CREATE TABLE altered AS SELECT 1 AS a")
    other = await connect()
    seen = []
    for text in ["ADD COLUMN b int DEFAULT 2", "ALTER COLUMN a TYPE text", "DROP COLUMN b"]:
        for mine in [conn, other] * 4:
            seen.append(tuple(await mine.fetchrow("SELECT * FROM altered")))
        await conn.execute(f"ALTER TABLE altered {text}")
        for mine in [conn, other] * 4:
            seen.append(tuple(await mine.fetchrow("SELECT * FROM altered")))
    async with conn.transaction():
        await conn.execute("ALTER TABLE altered ADD COLUMN c int")
        try:
            seen.append(tuple(await conn.fetchrow("SELECT * FROM altered")))
        except asyncpg.PostgresError as error:
            print(type(error).__name__, error)
    await other.close()
    return seen


async def released(_conn):
    """A pool's connection is reset when it goes back: locks, channels, cursors and settings are gone, and nobody waits."""
    tls = ssl.create_default_context(cafile=ca) if sslmode != "disable" else False
    seen = []
    async with asyncpg.create_pool(host=host, port=int(port), database=database, user="app", password="secret",
                                   ssl=tls, min_size=1, max_size=1) as pool:
        for n in range(4):
            async with pool.acquire() as mine:
                seen.append(await mine.fetchval("SELECT $1::int + 1", n))
                seen.append(await mine.fetchval("SHOW work_mem"))
                seen.append(await mine.fetchval("SELECT pg_try_advisory_lock(79)"))
                await mine.execute("SET work_mem = '3MB'; LISTEN words")
                seen.append(await mine.fetchval("SHOW work_mem"))
            async with pool.acquire() as mine:
                seen.append(await mine.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
                seen.append(await mine.fetch("SELECT pg_listening_channels()"))
    return seen


async def heard(conn):
    got = []
    done = asyncio.get_running_loop().create_future()

    def listener(_c, _pid, channel, payload):
        got.append((channel, payload))
        if payload == "last":
            done.set_result(None)
    await conn.add_listener("a", listener)
    await conn.add_listener("b", listener)
    other = await connect()
    for n in range(20):
        await other.execute("SELECT pg_notify($1, $2)", "ab"[n % 2], str(n))
        await conn.fetchval("SELECT $1::int", n)
    await conn.remove_listener("b", listener)
    await other.execute("NOTIFY b, 'not heard'")
    await other.execute("NOTIFY a, 'last'")
    await asyncio.wait_for(done, 10)
    await conn.remove_listener("a", listener)
    await other.close()
    return got, await conn.fetchval("SELECT 'alive'")


async def codecs(conn):
    await conn.execute("DO $$ BEGIN CREATE TYPE mood AS ENUM ('sad', 'ok'); EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    await conn.set_type_codec("json", encoder=str, decoder=lambda v: ("json", v), schema="pg_catalog")
    seen = [await conn.fetchval("SELECT $1::mood", "ok"), await conn.fetchval("SELECT ARRAY['sad']::mood[]")]
    seen.append(await conn.fetchval("SELECT '[1]'::json"))
    await conn.reload_schema_state()
    return seen + [await conn.fetchval("SELECT $1::mood", "sad")]


async def broken_block(conn):
    block = conn.transaction()
    await block.start()
    for text in ["SELECT 1/0", "SELECT 1", "SELECT $1::int"]:
        try:
            await (conn.fetchval(text, 1) if "$" in text else conn.execute(text))
        except asyncpg.PostgresError as error:
            print(fields(error))
    await block.rollback()
    return await conn.fetchval("SELECT $1::int", 2)


async def main():
    await case("parameters", parameters)
    await case("kinds", kinds)
    await case("bound", bound)
    await case("prepared", prepared)
    await case("no statement cache", prepared, statement_cache_size=0)
    await case("composite type", composite)
    await case("transactions", transactions)
    await case("syntax", statement("SELEKT 1"))
    await case("position", statement("SELECT 'ü', nowhere FROM item WHERE id = $1", 1))
    await case("not null", statement("INSERT INTO item VALUES ($1, NULL, 1, NULL)", 9))
    await case("check", statement("INSERT INTO item VALUES ($1, 'x', -1, NULL)", 9))
    await case("foreign key", statement("INSERT INTO item VALUES (9, 'x', 1, $1)", 12345))
    await case("raised", statement("SELECT complain($1)", "noise"))
    await case("notices", statement("SELECT remark('hm')"))
    await case("copy", copy)
    await case("copy bad", copy_bad)
    await case("cancelled", cancelled)
    await case("executemany", many)
    await case("singles", singles)
    await case("at once", at_once)
    await case("large", large)
    await case("several statements", statement("SELECT 1; SELECT 2; SELECT 1/0"))
    await case("cursor", cursors)
    await case("changed type", changed_type)
    await case("reset", reset)
    await case("listen", listening)
    await case("pool", pooled)
    await case("altered", altered)
    await case("pool's reset", released)
    await case("heard", heard)
    await case("codecs", codecs)
    await case("broken block", broken_block)
    await case("timeout", statement("SET statement_timeout = 250; SELECT pg_sleep(60)"))
    print("== end")


asyncio.run(main())
