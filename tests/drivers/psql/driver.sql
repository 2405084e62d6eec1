-- psql (libpq): the cases, printed by psql itself.
\set VERBOSITY verbose
\set SHOW_ALL_RESULTS on
\pset null <null>
\echo == parameters
\encoding
SHOW server_encoding; SHOW TimeZone; SHOW DateStyle;
\echo == kinds
\x on
SELECT * FROM kinds;
\x off
\echo == errors
SELEKT 1;
SELECT 'ü', nowhere FROM item;
INSERT INTO item VALUES (9, NULL, 1, NULL);
INSERT INTO item VALUES (9, 'x', -1, NULL);
INSERT INTO item VALUES (9, 'x', 1, 12345);
INSERT INTO stream (client) VALUES ('abc');
SELECT complain('noise');
\errverbose
\echo == notices
SELECT remark('hm');
\echo == transactions
BEGIN;
INSERT INTO item VALUES (301, 'one', 1, NULL);
SAVEPOINT a;
INSERT INTO item VALUES (301, 'again', 1, NULL);
SELECT 1;
ROLLBACK TO a;
INSERT INTO item VALUES (302, 'two', 1, NULL);
COMMIT;
BEGIN;
INSERT INTO item VALUES (303, 'three', 1, NULL);
ROLLBACK;
COMMIT;
SELECT * FROM item WHERE id > 300 ORDER BY id;
\echo == copy
COPY stream (client, seq, word) FROM STDIN;
1	1	a\tb
1	2	\N
\.
COPY stream (client, seq, word) FROM STDIN;
1	3	fine
x	4	bad
\.
COPY (SELECT client, seq, word FROM stream ORDER BY 1, 2) TO STDOUT;
\copy (SELECT client, seq FROM stream ORDER BY 1, 2) TO STDOUT (FORMAT csv)
\echo == several statements
SELECT 1\; SELECT 'two'\; SELECT 1/0\; SELECT 4;
SELECT 5\; COPY stream (client, seq) FROM STDIN\; SELECT 6;
2	1
\.
BEGIN\; INSERT INTO stream (client, seq) VALUES (2, 2)\; COMMIT;
\echo == prepared by SQL
PREPARE twice (int) AS SELECT $1 * 2;
EXECUTE twice(21);
SELECT 'between';
EXECUTE twice(22);
SELECT name, statement, parameter_types FROM pg_prepared_statements WHERE from_sql ORDER BY name;
DEALLOCATE twice;
EXECUTE twice(23);
\echo == settings
SET search_path TO pg_catalog, public;
SET TIME ZONE 'Asia/Tokyo';
SELECT current_setting('search_path'), current_setting('TimeZone');
BEGIN; SET LOCAL TIME ZONE 'UTC'; SHOW TimeZone; COMMIT;
SHOW TimeZone;
RESET ALL;
SHOW TimeZone;
DISCARD ALL;
\echo == session state
CREATE TEMP TABLE mine (a int);
INSERT INTO mine VALUES (1);
SELECT * FROM mine;
DECLARE kept CURSOR WITH HOLD FOR SELECT * FROM generate_series(1, 3);
FETCH 2 FROM kept;
SELECT 'between';
FETCH ALL FROM kept;
CLOSE kept;
SELECT pg_advisory_lock(5);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT pg_advisory_unlock(5);
\echo == cursors
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 10);
FETCH 3 FROM c;
MOVE 2 IN c;
FETCH NEXT FROM c;
COMMIT;
\set FETCH_COUNT 3
SELECT * FROM generate_series(1, 8);
\unset FETCH_COUNT
\echo == described
\gdesc
SELECT 1 AS one, 'x'::varchar(5) AS two \gdesc
\d item
\echo == singles
INSERT INTO stream (client, seq, word) VALUES (4, 1, 'a');
INSERT INTO stream (client, seq, word) VALUES (4, 2, 'it''s');
INSERT INTO stream (client, seq, word) VALUES (4, 3, NULL);
INSERT INTO stream (client, seq, word) VALUES (4, 4, 'd') RETURNING seq, word;
SELECT client, seq, word FROM stream WHERE client = 4 ORDER BY seq;
\echo == large objects
\set QUIET on
\lo_import /etc/passwd
SELECT count(*) FROM pg_largeobject_metadata WHERE oid = :LASTOID;
\lo_unlink :LASTOID
SELECT count(*) FROM pg_largeobject_metadata WHERE oid = :LASTOID;
\echo == timeouts
SET statement_timeout = 250;
SELECT pg_sleep(60);
SHOW statement_timeout;
RESET statement_timeout;
\echo == reset
LISTEN words;
SET work_mem = '3MB';
SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;
SHOW work_mem;
SHOW application_name;
DISCARD ALL;
SHOW application_name;
\echo == end
