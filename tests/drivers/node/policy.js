// node-postgres under a strict policy: what is refused and what is not. Arguments: HOST PORT DATABASE.
'use strict'
const pg = require('pg')

const [host, port, database] = process.argv.slice(2)

async function way (name, statements) {
  const client = new pg.Client({ host, port: Number(port), database, user: 'postgres', ssl: false })
  await client.connect()
  try {
    for (const statement of statements) await client.query(statement)
    console.log(`${name}\tworks`)
  } catch (error) {
    if (error.code !== '42501') throw error
    console.log(`${name}\trefused`)
  } finally {
    await client.end()
  }
}

async function main () {
  const insert = { text: 'INSERT INTO t VALUES ($1)', values: [1] }
  const select = 'SELECT count(*) FROM t'
  await way('as it is, statements with values', ['BEGIN', insert, 'COMMIT'])
  await way('as it is, a statement without values', [select])
  await way('`name` given, and values or not', ['BEGIN', insert, { name: 'count', text: select }, 'COMMIT'])
  const extended = (text) => ({ text, queryMode: 'extended' })
  await way("`queryMode: 'extended'`, BEGIN too", [extended('BEGIN'), insert, extended(select), extended('COMMIT')])
}

main()
