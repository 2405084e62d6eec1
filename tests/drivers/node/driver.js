// node-postgres: the cases, printed. Arguments: HOST PORT DATABASE SSLMODE CA-FILE.
'use strict'
const crypto = require('crypto')
const fs = require('fs')
const { pipeline } = require('stream/promises')
const { Readable, Writable } = require('stream')
// The modules lie under the target directory, in NODE_PATH.
const pg = require('pg')
const Cursor = require('pg-cursor')
const QueryStream = require('pg-query-stream')
const { from: copyFrom, to: copyTo } = require('pg-copy-streams')

const [host, port, database, sslmode, ca] = process.argv.slice(2)
const ssl = sslmode === 'disable' ? false : { ca: fs.readFileSync(ca), rejectUnauthorized: true }
const settings = { host, port: Number(port), database, user: 'app', password: 'secret', ssl, application_name: 'drivers', connectionTimeoutMillis: 20000 }

const FIELDS = ['severity', 'code', 'message', 'detail', 'hint', 'position', 'internalPosition', 'internalQuery', 'where', 'schema', 'table', 'column', 'dataType', 'constraint', 'file', 'line', 'routine']
const fields = (e) => Object.fromEntries(FIELDS.filter((n) => e[n] !== undefined).map((n) => [n, e[n]]))
const show = (value) => console.log(JSON.stringify(value, (_, v) => (typeof v === 'bigint' ? String(v) : v)))

async function failing (what, run) {
  try {
    show([what, await run()])
  } catch (e) {
    if (!e.code) throw e
    show([what, fields(e)])
  }
}

async function theCase (name, run, more = {}) {
  console.log('== ' + name)
  const client = new pg.Client({ ...settings, ...more })
  client.on('notice', (n) => show(['notice', fields(n)]))
  await client.connect()
  await failing('result', () => run(client))
  await client.end()
}

const rows = async (client, ...query) => (await client.query(...query)).rows

const cases = {
  parameters: async (c) => {
    const seen = {}
    for (const n of ['server_encoding', 'client_encoding', 'TimeZone', 'standard_conforming_strings']) seen[n] = (await rows(c, `SHOW ${n}`))[0]
    return seen
  },
  'kinds, text': (c) => rows(c, 'SELECT * FROM kinds'),
  'kinds, binary': (c) => rows(c, { text: 'SELECT b, i2, i4, i8, f4, f8, t, by, ts, tz FROM kinds', binary: true }),
  'kinds, as arrays': async (c) => {
    const result = await c.query({ text: 'SELECT * FROM kinds', rowMode: 'array' })
    return [result.command, result.rowCount, result.fields.map((f) => [f.name, f.dataTypeID, f.dataTypeSize, f.dataTypeModifier, f.format]), result.rows]
  },
  bound: (c) => rows(c, 'SELECT $1::int, $2::text, $3::bytea, $4::int[], $5::int8, $6::jsonb', [null, "naïve 'quote' \\ back", Buffer.from([0, 255]), [1, null, 3], '1099511627776', { a: 1 }]),
  'prepared, named': async (c) => {
    const seen = []
    for (let n = 0; n < 10; n++) seen.push((await rows(c, { name: 'twice', text: 'SELECT $1::int * 2 AS twice', values: [n] }))[0])
    return seen
  },
  transactions: async (c) => {
    await c.query('BEGIN')
    await c.query("INSERT INTO item VALUES (201, 'one', 1.5, NULL)")
    await c.query('SAVEPOINT inner_one')
    await failing('inner', () => c.query("INSERT INTO item VALUES ($1, 'again', 1.5, NULL)", [201]))
    await failing('failed block', () => c.query('SELECT 1'))
    await c.query('ROLLBACK TO SAVEPOINT inner_one')
    await c.query("INSERT INTO item VALUES (202, 'two', 1.5, NULL)")
    await c.query('COMMIT')
    await c.query('BEGIN')
    await c.query("INSERT INTO item VALUES (203, 'three', 1.5, NULL)")
    await c.query('ROLLBACK')
    return rows(c, 'SELECT * FROM item WHERE id > 200 ORDER BY id')
  },
  errors: async (c) => {
    await failing('syntax', () => c.query('SELEKT 1'))
    await failing('position', () => c.query("SELECT 'ü', nowhere FROM item WHERE id = $1", [1]))
    await failing('not null', () => c.query('INSERT INTO item VALUES ($1, NULL, 1, NULL)', [9]))
    await failing('check', () => c.query("INSERT INTO item VALUES (9, 'x', -1, NULL)"))
    await failing('foreign key', () => c.query("INSERT INTO item VALUES (9, 'x', 1, $1)", [12345]))
    await failing('bad literal', () => c.query("INSERT INTO stream (client) VALUES ('abc')"))
    await failing('bad parameter', () => c.query('INSERT INTO stream (client) VALUES ($1)', ['abc']))
    await failing('raised', () => c.query('SELECT complain($1)', ['noise']))
    return rows(c, "SELECT 'alive' AS state")
  },
  notices: (c) => rows(c, "SELECT remark('hm')"),
  copy: async (c) => {
    const lines = Array.from({ length: 1000 }, (_, n) => `7\t${n}\t${n % 3 ? '\\N' : 'w\\t' + n}\n`)
    const into = c.query(copyFrom('COPY stream (client, seq, word) FROM STDIN'))
    await pipeline(Readable.from(lines), into)
    show(into.rowCount)
    const digest = crypto.createHash('md5')
    const sink = new Writable({ write (chunk, _, done) { digest.update(chunk); done() } })
    await pipeline(c.query(copyTo('COPY (SELECT client, seq, word FROM stream ORDER BY 1, 2) TO STDOUT')), sink)
    await failing('bad row', () => pipeline(Readable.from(['1\t2\n', 'x\t3\n']), c.query(copyFrom('COPY stream (client, seq) FROM STDIN'))))
    return digest.digest('hex')
  },
  cancelled: async (c) => {
    const canceller = new pg.Client(settings)
    const query = new pg.Query('SELECT pg_sleep(60)')
    const failed = new Promise((resolve) => query.once('error', resolve))
    c.query(query)
    const other = new pg.Client(settings)
    await other.connect()
    // The query must have begun: an early cancel would be lost.
    const sleeping = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    while ((await rows(other, sleeping)).length === 0);
    await other.end()
    canceller.cancel(c, query)
    show(fields(await failed))
    return rows(c, "SELECT 'alive' AS state")
  },
  singles: async (c) => {
    const tags = new Set()
    for (let n = 0; n < 50; n++) {
      const result = await c.query('INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)', [4, n, 's'])
      tags.add(`${result.command} ${result.rowCount}`)
      const named = await c.query({ name: 'in', text: 'INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)', values: [5, n, 'n'] })
      tags.add(`${named.command} ${named.rowCount}`)
      const literal = await c.query(`INSERT INTO stream (client, seq, word) VALUES (6, ${n}, 'it''s')`)
      tags.add(`${literal.command} ${literal.rowCount}`)
    }
    return [[...tags], await rows(c, 'SELECT client, count(*), sum(seq), min(word) FROM stream WHERE client IN (4, 5, 6) GROUP BY 1 ORDER BY 1')]
  },
  'at once': async (c) => {
    const pool = new pg.Pool({ ...settings, max: 8 })
    const inserts = Array.from({ length: 400 }, (_, n) => pool.query('INSERT INTO stream (client, seq, word) VALUES ($1, $2, $3)', [30, n, 'w' + n]))
    const tags = new Set((await Promise.all(inserts)).map((r) => `${r.command} ${r.rowCount}`))
    await pool.end()
    return [[...tags], await rows(c, 'SELECT count(*), count(DISTINCT seq), sum(seq) FROM stream WHERE client = 30')]
  },
  large: async (c) => {
    const text = '0123456789abcdef'.repeat(400000)
    const [{ back }] = await rows(c, 'SELECT $1::text AS back', [text])
    const many = await rows(c, "SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
    return [crypto.createHash('md5').update(back).digest('hex'), many.length]
  },
  'several statements': async (c) => (await c.query("SELECT 1 AS a; SELECT 'two' AS b; CREATE TEMP TABLE gone (a int); DROP TABLE gone")).map((r) => [r.command, r.rows]),
  empty: async (c) => (await c.query('')).rows,
  cursor: async (c) => {
    const cursor = c.query(new Cursor('SELECT * FROM generate_series(1, $1)', [10]))
    const seen = [await cursor.read(3), await cursor.read(3)]
    await cursor.close()
    return [seen, await rows(c, "SELECT 'alive' AS state")]
  },
  settings: async (c) => {
    await c.query("SET TIME ZONE 'Asia/Tokyo'")
    const seen = []
    for (let n = 0; n < 5; n++) seen.push((await rows(c, 'SHOW TimeZone'))[0])
    return seen
  },
  'settings are gone': (c) => rows(c, 'SHOW TimeZone'),
  listen: async (c) => {
    const heard = new Promise((resolve) => c.once('notification', (n) => resolve([n.channel, n.payload])))
    await c.query('LISTEN words')
    const other = new pg.Client(settings)
    await other.connect()
    await other.query("NOTIFY words, 'hello'")
    await other.end()
    return heard
  },
  'heard between queries': async (c) => {
    const heard = []
    let last
    const done = new Promise((resolve) => { last = resolve })
    c.on('notification', (n) => {
      heard.push([n.channel, n.payload])
      if (n.payload === 'last') last()
    })
    await c.query('LISTEN a; LISTEN b')
    const other = new pg.Client(settings)
    await other.connect()
    for (let n = 0; n < 20; n++) {
      await other.query('SELECT pg_notify($1, $2)', [n % 2 ? 'a' : 'b', String(n)])
      await c.query('SELECT $1::int', [n])
    }
    await c.query('UNLISTEN b')
    await other.query("NOTIFY b, 'not heard'")
    await other.query("NOTIFY a, 'last'")
    await done
    await c.query('UNLISTEN *')
    await other.query("NOTIFY a, 'not heard'")
    await other.end()
    return [heard, await rows(c, "SELECT 'alive' AS state")]
  },
  stream: async (c) => {
    let sum = 0
    for await (const row of c.query(new QueryStream('SELECT * FROM generate_series(1, $1) AS n', [1000], { batchSize: 10 }))) sum += row.n
    const cut = c.query(new QueryStream('SELECT * FROM generate_series(1, 100000) AS n', [], { batchSize: 7 }))
    for await (const row of cut) if (row.n > 20) break
    await failing('in the middle', async () => {
      let n = 0
      for await (const row of c.query(new QueryStream('SELECT 1 / (30 - n) AS q FROM generate_series(1, 100) AS n', [], { batchSize: 7 }))) n += row.q
      return n
    })
    return [sum, await rows(c, "SELECT 'alive' AS state")]
  },
  'the same names': async (c) => {
    const other = new pg.Client(settings)
    await other.connect()
    const seen = []
    for (let n = 0; n < 6; n++) {
      seen.push(await rows(c, { name: 'mine', text: 'SELECT $1::int + 1 AS a', values: [n] }))
      seen.push(await rows(other, { name: 'mine', text: "SELECT $1::text || 'x' AS b", values: [String(n)] }))
    }
    await other.end()
    return seen
  },
  'changed type': async (c) => {
    const other = new pg.Client(settings)
    await other.connect()
    await c.query('DROP TABLE IF EXISTS changing')
    await c.query('CREATE TABLE changing AS SELECT 1 AS a')
    const seen = []
    const named = (name) => ({ name, text: 'SELECT * FROM changing' })
    for (let n = 0; n < 6; n++) seen.push(await rows(other, named('one')))
    await c.query("ALTER TABLE changing ADD COLUMN b text DEFAULT 'new'")
    for (let n = 0; n < 3; n++) {
      // What a proxy says in the server's place has no line of the server's source.
      await rows(other, named('one')).then(show, (e) => show([e.code, e.message, e.routine]))
    }
    for (let n = 0; n < 6; n++) seen.push(await rows(other, named('two')))
    await other.end()
    return seen
  },
  pool: async () => {
    const pool = new pg.Pool({ ...settings, max: 4 })
    const seen = await Promise.all(Array.from({ length: 40 }, async (_, n) => {
      const mine = await pool.connect()
      try {
        await mine.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
        await mine.query("SELECT set_config('my.number', $1, true)", [String(n)])
        const [{ number }] = await rows(mine, "SELECT current_setting('my.number') AS number")
        await mine.query(n % 2 ? 'COMMIT' : 'ROLLBACK')
        return number
      } finally {
        mine.release()
      }
    }))
    await pool.end()
    return seen
  },
  'settings in transactions': async (c) => {
    const seen = []
    const show = async () => seen.push(await rows(c, "SELECT current_setting('work_mem') AS m, current_setting('TimeZone') AS z"))
    for (const end of ['ROLLBACK', 'COMMIT']) {
      await c.query('BEGIN')
      await c.query("SET work_mem = '3MB'")
      await c.query("SET LOCAL TIME ZONE 'Asia/Tokyo'")
      await show()
      await c.query(end)
      await show()
    }
    await c.query('DISCARD ALL')
    await show()
    return seen
  }
}

async function main () {
  for (const [name, run] of Object.entries(cases)) await theCase(name, run)
  const limits = { statement_timeout: 250, lock_timeout: 70, idle_in_transaction_session_timeout: 80000, options: '-c work_mem=5MB' }
  await theCase('limits at login', async (c) => {
    await failing('sleeps', () => c.query('SELECT pg_sleep(60)'))
    await failing('sleeps, extended', () => c.query('SELECT pg_sleep($1)', [60]))
    const seen = []
    for (const n of ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'work_mem']) seen.push(await rows(c, `SHOW ${n}`))
    return seen
  }, limits)
  console.log('== end')
}

main().catch((e) => {
  console.error(e)
  process.exit(1)
})
