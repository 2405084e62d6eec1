"""psycopg 3: the cases, printed. Arguments: HOST PORT DATABASE SSLMODE CA-FILE."""

import hashlib
import logging
import sys
import threading

import psycopg

# Says, or not, by chance, that leaving a failed pipeline failed too.
logging.getLogger("psycopg").setLevel(logging.ERROR)

host, port, database, sslmode, ca = sys.argv[1:6]


SLEEPS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


def connect(**more):
    tls = {"sslrootcert": ca} if sslmode != "disable" else {}
    return psycopg.connect(
        host=host, port=port, dbname=database, user="app", password="secret", sslmode=sslmode,
        gssencmode="disable", connect_timeout=20, application_name="drivers", **tls, **more,
    )


FIELDS = [n for n in dir(psycopg.errors.Diagnostic) if not n.startswith("_")]


def fields(diag):
    return {n: getattr(diag, n) for n in FIELDS if getattr(diag, n) is not None}


def case(name, run, **more):
    print("==", name)
    with connect(**more) as conn:
        conn.add_notice_handler(lambda d: print("notice", fields(d)))
        try:
            print(run(conn))
        except psycopg.Error as error:
            print("error", type(error).__name__, fields(error.diag) or str(error))
        print("status", conn.info.transaction_status.name)
        conn.rollback()


def parameters(conn):
    names = ["server_encoding", "client_encoding", "TimeZone", "DateStyle", "standard_conforming_strings",
             "integer_datetimes", "IntervalStyle", "application_name", "server_version", "is_superuser"]
    return [(n, conn.info.parameter_status(n)) for n in names] + [("tls", conn.pgconn.ssl_in_use)]


def kinds(binary):
    return lambda conn: conn.cursor(binary=binary).execute("SELECT * FROM kinds").fetchall()


def bound(conn):
    return conn.execute(
        "SELECT %s::int, %s::text, %s::bytea, %s::int[], %b::int8, %t::numeric, %s::jsonb",
        (None, "naïve 'quote' \\ back", b"\x00\xff", [1, None, 3], 2**40, "1.50", '{"a":1}'),
    ).fetchall()


def prepared(conn):
    seen = []
    for turn in range(4):
        seen.append(conn.execute("SELECT %s::int * 2", (turn,), prepare=True).fetchone())
        conn.commit()
    with conn.cursor() as cur:
        for turn in range(12):  # beyond prepare_threshold, by itself
            seen.append(cur.execute("SELECT %s::text || 'x'", (str(turn),)).fetchone())
            conn.commit()
    return seen


def transactions(conn):
    with conn.transaction():
        conn.execute("INSERT INTO item VALUES (1, 'one', 1.5, NULL)")
        try:
            with conn.transaction():
                conn.execute("INSERT INTO item VALUES (2, 'two', 2.5, NULL)")
                conn.execute("INSERT INTO item VALUES (1, 'again', 2.5, NULL)")
        except psycopg.errors.UniqueViolation as error:
            print("inner", fields(error.diag))
        conn.execute("INSERT INTO item VALUES (3, 'three', 3.5, NULL)")
    try:
        with conn.transaction():
            conn.execute("INSERT INTO item VALUES (4, 'four', 4.5, NULL)")
            raise psycopg.Rollback()
    except psycopg.Error as error:
        print("outer", error)
    return conn.execute("SELECT * FROM item ORDER BY id").fetchall()


def failed_block(conn):
    try:
        conn.execute("SELECT 1/0")
    except psycopg.Error as error:
        print(fields(error.diag))
    return conn.execute("SELECT 1")


def statement(text, parameters=None):
    def run(conn):
        cur = conn.execute(text, parameters)
        return cur.statusmessage, cur.fetchall() if cur.description else None
    return run


def copy_in(conn):
    with conn.cursor() as cur:
        with cur.copy("COPY stream (client, seq, word) FROM STDIN") as copy:
            for n in range(1000):
                copy.write_row((7, n, None if n % 3 else f"w\t{n}\\"))
        print(cur.statusmessage)
        with cur.copy("COPY stream (client, seq, data) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "int4", "bytea"])
            for n in range(1000):
                copy.write_row((8, n, bytes([n % 256]) * 10))
        print(cur.statusmessage)
        with cur.copy("COPY (SELECT client, seq, word FROM stream WHERE seq < 4 ORDER BY 1, 2) TO STDOUT") as copy:
            print(list(copy.rows()))
        digest = hashlib.md5()
        with cur.copy("COPY (SELECT client, seq, word, data FROM stream ORDER BY 1, 2) TO STDOUT (FORMAT binary)") as copy:
            for block in copy:
                digest.update(block)
        return digest.hexdigest()


def copy_bad(conn):
    with conn.cursor().copy("COPY stream (client, seq) FROM STDIN") as copy:
        copy.write("1\t2\nx\t3\n")


def copy_abandoned(conn):
    class Enough(Exception):
        pass
    try:
        with conn.cursor().copy("COPY stream (client, seq) FROM STDIN") as copy:
            copy.write("99\t2\n")
            raise Enough("enough")
    except Enough as error:
        print("abandoned", error)
    conn.rollback()
    return conn.execute("SELECT count(*) FROM stream WHERE client = 99").fetchone()


def cancelled(conn):
    def soon():
        with connect(autocommit=True) as other:
            # The query must have begun: an early cancel would be lost.
            while not other.execute(SLEEPS).fetchone()[0]:
                pass
        conn.cancel()
    thread = threading.Thread(target=soon)
    thread.start()
    try:
        conn.execute("SELECT pg_sleep(60)")
    finally:
        thread.join()


def pipeline(conn):
    conn.autocommit = True
    with conn.pipeline() as pipe:
        cursors = [conn.execute("SELECT %s::int", (n,)) for n in range(20)]
        pipe.sync()
        rows = [c.fetchone() for c in cursors]
        for n in range(100):
            conn.execute("INSERT INTO stream (client, seq, word) VALUES (%s, %s, %s)", (1, n, f"p{n}"))
        pipe.sync()
        tail = conn.execute("SELECT count(*), sum(seq) FROM stream WHERE client = 1")
        rows.append(tail.fetchone())
    return rows


def pipeline_error(conn):
    conn.autocommit = True
    outcomes = []
    try:
        with conn.pipeline() as pipe:
            conn.execute("INSERT INTO stream (client, seq) VALUES (2, 1)")
            pipe.sync()
            conn.execute("INSERT INTO stream (client, seq) VALUES (2, 2)")
            conn.execute("INSERT INTO stream (client, seq) VALUES (2, %s::text::int)", ("bad",))
            conn.execute("INSERT INTO stream (client, seq) VALUES (2, 4)")
            pipe.sync()
            conn.execute("INSERT INTO stream (client, seq) VALUES (2, 5)")
    except psycopg.Error as error:
        outcomes.append((type(error).__name__, fields(error.diag)))
    outcomes.append(conn.execute("SELECT seq FROM stream WHERE client = 2 ORDER BY 1").fetchall())
    return outcomes


def many(conn):
    with conn.cursor() as cur:
        rows = [(3, n, f"m{n}", None if n % 2 else "2024-02-29 01:02:03+00", bytes([n])) for n in range(200)]
        cur.executemany("INSERT INTO stream VALUES (%s, %s, %s, %s, %s)", rows)
        print("rowcount", cur.rowcount)
        try:
            with conn.transaction():
                cur.executemany("INSERT INTO item VALUES (%s, %s, 1, NULL)", [(50, "a"), (51, None), (52, "c")])
        except psycopg.Error as error:
            print(fields(error.diag))
        cur.executemany("INSERT INTO item VALUES (%s, %s, 1, NULL) RETURNING id, name", [(60, "a"), (61, "b")], returning=True)
        while True:
            print(cur.fetchall())
            if not cur.nextset():
                break
    conn.commit()
    return conn.execute("SELECT * FROM stream WHERE client = 3 ORDER BY seq").fetchall()


def singles(conn):
    conn.autocommit = True
    for n in range(50):
        cur = conn.execute("INSERT INTO stream (client, seq, word) VALUES (%s, %s, %s)", (4, n, "single"))
        if n == 0:
            print(cur.statusmessage, cur.rowcount)
    for n in range(50):
        cur = psycopg.ClientCursor(conn).execute("INSERT INTO stream (client, seq, word) VALUES (%s, %s, %s)", (5, n, "lit'eral"))
    print(cur.statusmessage, cur.rowcount)
    return conn.execute("SELECT client, count(*), sum(seq), min(word) FROM stream WHERE client IN (4, 5) GROUP BY 1 ORDER BY 1").fetchall()


def large(conn):
    text = "0123456789abcdef" * 400_000
    back, length = conn.execute("SELECT %s::text, octet_length(%s)", (text, text.encode())).fetchone()
    rows = conn.execute("SELECT repeat('x', 1000) FROM generate_series(1, 5000)").fetchall()
    return (hashlib.md5(back.encode()).hexdigest(), length, len(rows))


def several(conn):
    cur = conn.execute("SELECT 1; SELECT 'two', 2; CREATE TEMP TABLE gone (a int); DROP TABLE gone")
    seen = [cur.fetchall()]
    while cur.nextset():
        seen.append((cur.statusmessage, cur.fetchall() if cur.description else None))
    return seen


def cursors(conn):
    with conn.cursor("named", scrollable=True) as cur:
        cur.execute("SELECT * FROM generate_series(1, 100)")
        seen = [cur.fetchmany(3)]
        cur.scroll(50)
        seen.append(cur.fetchone())
    return seen


def hold(conn):
    conn.autocommit = True
    with conn.cursor("kept", withhold=True) as cur:
        cur.execute("SELECT * FROM generate_series(1, 5)")
        return [cur.fetchmany(2), conn.execute("SELECT 'between'").fetchone(), cur.fetchall()]


def settings(conn):
    conn.autocommit = True
    conn.execute("SET search_path TO pg_catalog, public; SET TIME ZONE 'Asia/Tokyo'")
    conn.execute("SELECT set_config('my.own', 'kept', false)")
    seen = [conn.execute("SELECT current_setting('search_path'), current_setting('TimeZone'), current_setting('my.own')").fetchone() for _ in range(5)]
    seen.append(conn.info.parameter_status("TimeZone"))
    conn.execute("RESET TIME ZONE")
    seen.append(conn.execute("SHOW TimeZone").fetchone())
    return seen


def listening(conn):
    conn.autocommit = True
    conn.execute("LISTEN words")
    with connect(autocommit=True) as other:
        other.execute("NOTIFY words, 'hello'")
    return [(n.channel, n.payload) for n in conn.notifies(timeout=10, stop_after=1)]


def temporary(conn):
    conn.autocommit = True
    conn.execute("CREATE TEMP TABLE mine (a int)")
    for n in range(5):
        conn.execute("INSERT INTO mine VALUES (%s)", (n,))
    return conn.execute("SELECT sum(a) FROM mine").fetchone()


def described(conn):
    cur = conn.execute("SELECT 1 AS one, 'x'::varchar(5) AS two, 1.5::numeric(6,2) AS three, now() AS four")
    return [(c.name, c.type_code, c.display_size, c.internal_size, c.precision, c.scale) for c in cur.description]

def same_names(conn):
    """Two connections give different statements the same name."""
    conn.autocommit = True
    seen = []
    with connect(autocommit=True) as other:
        for n in range(6):
            seen.append(conn.execute("SELECT %s::int + 1", (n,), prepare=True).fetchone())
            seen.append(other.execute("SELECT %s::text || 'b'", (str(n),), prepare=True).fetchone())
    return seen


def evicted(pipelined):
    """More statements than the driver keeps: it deallocates the oldest."""
    def run(conn):
        conn.autocommit = True
        conn.prepared_max = 2
        texts = [f"SELECT %s::int + {n}" for n in range(5)]
        if not pipelined:
            return [conn.execute(texts[n % 5], (n,), prepare=True).fetchone() for n in range(15)]
        with conn.pipeline():
            cursors = [conn.execute(texts[n % 5], (n,), prepare=True) for n in range(15)]
            return [c.fetchone() for c in cursors]
    return run


def deallocated(conn):
    """The driver forgets all its statements after DROP and ROLLBACK: DEALLOCATE ALL, then it prepares again."""
    seen = []
    for n in range(4):
        seen.append(conn.execute("SELECT %s::int * 3", (n,), prepare=True).fetchone())
        conn.rollback()
    conn.autocommit = True
    with conn.pipeline():
        first = conn.execute("SELECT %s::int * 3", (10,), prepare=True)
        conn.execute("DEALLOCATE ALL")
        seen.append(first.fetchone())
    # The driver answers DEALLOCATE ALL with one of its own behind its next statement: not inside the pipeline,
    # where it would hit a statement just prepared, or not, as the answers happen to arrive.
    conn.execute("SELECT 1")
    with conn.pipeline():
        then = [conn.execute("SELECT %s::int * 3", (n,), prepare=True) for n in range(3)]
        other = conn.execute("SELECT %s::int * 5", (1,), prepare=True)
        seen += [c.fetchone() for c in [*then, other]]
    conn.execute("DISCARD ALL")
    return seen, conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE from_sql").fetchone()


def changed_type(conn):
    conn.autocommit = True
    conn.execute("DROP TABLE IF EXISTS changing")
    conn.execute("CREATE TABLE changing AS SELECT 1 AS a")
    with connect(autocommit=True) as other:
        seen = [other.execute("SELECT * FROM changing", prepare=True).fetchone() for _ in range(6)]
        conn.execute("ALTER TABLE changing ADD COLUMN b int DEFAULT 2")
        try:
            other.execute("SELECT * FROM changing", prepare=True)
        except psycopg.Error as error:
            seen.append(fields(error.diag))
        # What the driver's users do about it.
        other.execute("DEALLOCATE ALL")
        other._prepared.clear()
        seen += [other.execute("SELECT * FROM changing", prepare=True).fetchone() for _ in range(6)]
    return seen


def timeouts(conn):
    conn.autocommit = True
    conn.execute("SET statement_timeout = 250")
    seen = []
    for _ in range(3):
        try:
            conn.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            seen.append(fields(error.diag))
        seen.append(conn.execute("SHOW statement_timeout").fetchone())
    conn.execute("RESET statement_timeout")
    with conn.transaction():
        conn.execute("SET LOCAL statement_timeout = 70")
        seen.append(conn.execute("SHOW statement_timeout").fetchone())
    seen.append(conn.execute("SHOW statement_timeout").fetchone())
    return seen


def in_transactions(conn):
    # Where nobody set it a setting like my.own does not exist; where that was rolled back it is empty.
    show = "SELECT current_setting('work_mem'), coalesce(current_setting('my.own', true), ''), current_setting('TimeZone')"
    conn.execute("SET work_mem = '3MB'; SET my.own = 'lost'; SET TIME ZONE 'Asia/Tokyo'")
    seen = [conn.execute(show).fetchone(), conn.info.parameter_status("TimeZone")]
    conn.rollback()
    seen += [conn.execute(show).fetchone(), conn.info.parameter_status("TimeZone")]
    conn.execute("SET work_mem = '5MB'; SET LOCAL TIME ZONE 'UTC'")
    conn.commit()
    seen += [conn.execute(show).fetchone(), conn.info.parameter_status("TimeZone")]
    try:
        with conn.transaction():
            conn.execute("SET work_mem = '6MB'")
            raise psycopg.Rollback()
    finally:
        seen.append(conn.execute(show).fetchone())
    conn.commit()
    return seen + [conn.execute(show).fetchone()]


def isolation(conn):
    show = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('transaction_deferrable')"
    seen = []
    for level in psycopg.IsolationLevel:
        conn.isolation_level, conn.read_only, conn.deferrable = level, True, True
        seen.append(conn.execute(show).fetchone())
        conn.rollback()
    conn.isolation_level = conn.read_only = conn.deferrable = None
    conn.autocommit = True
    conn.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY")
    seen += [conn.execute(show).fetchone() for _ in range(4)]
    try:
        conn.execute("INSERT INTO stream (client) VALUES (1)")
    except psycopg.Error as error:
        seen.append(fields(error.diag))
    return seen


def notifications(conn):
    """Several channels, in transactions, from oneself and from others; what follows UNLISTEN is not heard."""
    heard = []
    conn.add_notify_handler(lambda n: heard.append((n.channel, n.payload, n.pid == conn.info.backend_pid)))
    conn.autocommit = True
    with connect(autocommit=True) as other:
        with conn.transaction():
            conn.execute("LISTEN a")
            conn.execute("LISTEN b")
            other.execute("NOTIFY a, 'too early'")
        for n in range(20):
            other.execute("SELECT pg_notify(%s, %s)", ("ab"[n % 2], str(n)))
            conn.execute("SELECT %s::int", (n,))
        other.execute("NOTIFY a, 'idle'")
        while heard[-1][1] != "idle":
            conn.execute("SELECT 1")
        conn.execute("UNLISTEN a")
        other.execute("NOTIFY a, 'no'; NOTIFY b, 'yes'")
        while heard[-1][1] != "yes":
            conn.execute("SELECT 1")
        conn.execute("UNLISTEN *")
        other.execute("NOTIFY b, 'no'")
        conn.execute("SELECT 1")
    return [h[:2] for h in heard]


def streamed(conn):
    with conn.cursor() as cur:
        return sum(row[0] for row in cur.stream("SELECT * FROM generate_series(1, %s)", (1000,)))


def pipelined_cursor(conn):
    with conn.pipeline():
        with conn.cursor("named") as cur:
            cur.execute("SELECT * FROM generate_series(1, 10)")
            seen = [cur.fetchmany(3), cur.fetchone()]
        with conn.transaction():
            conn.execute("INSERT INTO stream (client, seq) VALUES (90, 1)")
        try:
            with conn.transaction():
                conn.execute("INSERT INTO stream (client, seq) VALUES (90, 2)")
                conn.execute("SELECT 1/0").fetchone()
        except psycopg.Error as error:
            seen.append(fields(error.diag))
        seen.append(conn.execute("SELECT seq FROM stream WHERE client = 90").fetchall())
    return seen


def large_objects(conn):
    oid = conn.execute("SELECT lo_create(0)").fetchone()[0]
    fd = conn.execute("SELECT lo_open(%s, 393216)", (oid,)).fetchone()[0]
    seen = [fd, conn.execute("SELECT lowrite(%s, %s)", (fd, b"abc" * 100_000)).fetchone()]
    seen.append(conn.execute("SELECT lo_lseek(%s, 3, 0), loread(%s, 4)", (fd, fd)).fetchone())
    conn.commit()
    seen.append(conn.execute("SELECT length(lo_get(%s)), lo_unlink(%s)", (oid, oid)).fetchone())
    conn.commit()
    return seen


def locks(conn):
    conn.autocommit = True
    seen = [conn.execute("SELECT pg_try_advisory_lock(77)").fetchone()]
    with connect(autocommit=True) as other:
        seen.append(other.execute("SELECT pg_try_advisory_lock(77)").fetchone())
        seen.append(conn.execute("SELECT pg_advisory_unlock(77)").fetchone())
        seen.append(other.execute("SELECT pg_try_advisory_lock(77)").fetchone())
        seen.append(other.execute("SELECT pg_advisory_unlock_all()").fetchone())
    return seen


def options(conn):
    """What the startup packet set holds through RESET and DISCARD."""
    conn.autocommit = True
    show = "SELECT current_setting('work_mem'), current_setting('application_name')"
    seen = [conn.execute(show).fetchone()]
    conn.execute("SET work_mem = '7MB'")
    seen.append(conn.execute(show).fetchone())
    for reset in ["RESET work_mem", "RESET ALL", "DISCARD ALL", "SET SESSION AUTHORIZATION DEFAULT; RESET ALL"]:
        conn.execute("SET work_mem = '8MB'")
        conn.execute(reset)
        seen.append(conn.execute(show).fetchone())
    conn.execute("LISTEN pinned")
    conn.execute("RESET ALL")
    return seen + [conn.execute(show).fetchone(), conn.info.parameter_status("application_name")]


def released(conn):
    """What pools of other drivers run when a connection goes back."""
    conn.autocommit = True
    seen = []
    for reset in ["SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL", "DISCARD ALL",
                  "CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP; "
                  "SET SESSION AUTHORIZATION DEFAULT; RESET ALL"]:
        conn.execute("LISTEN words; SELECT pg_advisory_lock(78); CREATE TEMP TABLE t (a int); SET work_mem = '3MB'")
        cur = conn.execute(reset)
        seen.append(cur.statusmessage)
        seen.append(conn.execute("SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()").fetchone())
        conn.execute("DISCARD TEMP")
        seen += [conn.execute("SHOW work_mem").fetchone() for _ in range(3)]
    return seen


case("parameters", parameters)
if sslmode != "disable":
    case("channel binding", parameters, channel_binding="require")
case("options", statement("SHOW work_mem"), options="-c work_mem=5MB")
case("kinds, text", kinds(False))
case("kinds, binary", kinds(True))
case("bound", bound)
case("described", described)
case("prepared", prepared)
case("transactions", transactions)
case("failed block", failed_block)
case("syntax", statement("SELEKT 1"))
case("position", statement("SELECT 'ü', nowhere FROM item"))
case("not null", statement("INSERT INTO item VALUES (9, NULL, 1, NULL)"))
case("check", statement("INSERT INTO item VALUES (9, 'x', -1, NULL)"))
case("foreign key", statement("INSERT INTO item VALUES (9, 'x', 1, %s)", (12345,)))
case("bad literal", statement("INSERT INTO stream (client) VALUES ('abc')"))
case("bad parameter", statement("INSERT INTO stream (client) VALUES (%s::text::int)", ("abc",)))
case("raised", statement("SELECT complain('noise')"))
case("notices", lambda conn: conn.execute("SELECT remark('hm')").fetchall())
case("copy in", copy_in)
case("copy bad", copy_bad)
case("copy abandoned", copy_abandoned)
case("cancelled", cancelled)
case("pipeline", pipeline)
case("pipeline error", pipeline_error)
case("executemany", many)
case("singles", singles)
case("large", large)
case("several statements", several)
case("empty", lambda conn: conn.execute("").statusmessage)
case("cursor", cursors)
case("cursor with hold", hold)
case("settings", settings)
case("settings are gone", statement("SHOW TimeZone"))
case("listen", listening)
case("temporary table", temporary)
case("the same names", same_names)
case("evicted", evicted(False))
case("evicted, pipeline", evicted(True))
case("deallocated", deallocated)
case("changed type", changed_type)
case("timeouts", timeouts)
case("settings in transactions", in_transactions)
case("isolation", isolation)
case("notifications", notifications)
case("streamed", streamed)
case("pipeline with cursor", pipelined_cursor)
case("large objects", large_objects)
case("advisory locks", locks)
case("options are kept", options, options="-c work_mem=6MB")
case("released", released)
print("== end")
