-- What every driver's program finds. Run as the superuser; the programs log in as `app`.
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE item (
    id int CONSTRAINT item_key PRIMARY KEY,
    name text NOT NULL,
    price numeric(10,2) CONSTRAINT price_positive CHECK (price > 0),
    parent int CONSTRAINT item_parent REFERENCES parent (id)
);
-- What pgsluice pours: no trigger, no default that could tell the rows apart.
CREATE TABLE stream (client int, seq int, word text, at timestamptz, data bytea);
CREATE TABLE kinds (
    b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision, n numeric,
    t text, v varchar(20), by bytea, d date, ti time, ts timestamp, tz timestamptz,
    u uuid, j json, jb jsonb, ia int[], ta text[]
);
INSERT INTO kinds VALUES
    (true, -7, 42, 9007199254740993, 1.5, -2.25, 12345678901234567890.0123456789,
     'naïve — 日本語', 'v', '\x00ff10', '2024-02-29', '13:14:15.123456', '2024-02-29 13:14:15.123456',
     '2024-02-29 13:14:15.123456+00', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, null]}', '{"b": "ü"}',
     '{1,NULL,3}', '{"a b",NULL,"c,d"}'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (false, 32767, -2147483648, 0, 'NaN', 'Infinity', 0, '', '', '', '1970-01-01', '00:00', '1970-01-01 00:00',
     '1970-01-01 00:00+00', '00000000-0000-0000-0000-000000000000', 'null', '{}', '{}', '{}');
CREATE FUNCTION complain(what text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'about %', what USING DETAIL = 'A detail.', HINT = 'A hint.';
    RAISE EXCEPTION 'complaint: %', what USING ERRCODE = 'P1234', DETAIL = 'Why.', HINT = 'What to do.',
        SCHEMA = 's', TABLE = 't', COLUMN = 'c', DATATYPE = 'd', CONSTRAINT = 'k';
END $$;
CREATE FUNCTION remark(what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'remark: %', what;
    RAISE WARNING 'warned: %', what USING ERRCODE = '01P77';
    RETURN upper(what);
END $$;
GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
GRANT CREATE ON SCHEMA public TO app;
