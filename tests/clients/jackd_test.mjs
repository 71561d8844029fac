// The Node client jackd, unmodified, through the whole life of a job.
//
// Usage: node jackd_test.mjs HOST:PORT | unix:PATH
//
// JACKD names the directory that jackd is installed in, if it is not found from here.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import net from 'node:net'
import path from 'node:path'

const require = createRequire(process.env.JACKD ? path.resolve(process.env.JACKD, 'index.js') : import.meta.url)
const Jackd = require('jackd')

const address = process.argv[2]
const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
const tests = []
const test = (name, run) => tests.push({ name, run })

// jackd hands its port on to net.Socket, which takes a path as well.
function target() {
  if (address.startsWith('unix:')) return { port: address.slice('unix:'.length) }
  const colon = address.lastIndexOf(':')
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) }
}

const open = []

async function connect(tube) {
  const client = new Jackd()
  await client.connect(target())
  open.push(client)
  assert.equal(await client.use(tube), tube)
  await client.watch(tube)
  await client.ignore('default')
  return client
}

// jackd turns buffers into JSON when it puts them, so binary bodies are put by hand.
function putRaw(tube, body) {
  const { host, port } = target()
  return new Promise((resolve, reject) => {
    let answer = ''
    const socket = net.connect(...(host ? [port, host] : [port]), () => {
      socket.write(`use ${tube}\r\nput 0 0 60 ${body.length}\r\n`)
      socket.write(Buffer.concat([body, Buffer.from('\r\nquit\r\n')]))
    })
    socket.on('data', data => (answer += data))
    socket.on('error', reject)
    socket.on('close', () => resolve(/INSERTED (\d+)/.exec(answer)?.[1]))
  })
}

const fails = (promise, answer) => assert.rejects(promise, error => error.message.startsWith(answer))
const value = (yaml, key) => new RegExp(`^${key}: "?(.*?)"?$`, 'm').exec(yaml)?.[1]

test('put, reserve, delete', async tube => {
  const client = await connect(tube)
  const id = await client.put('hello', { priority: 7, ttr: 30 })
  const job = await client.reserve()
  assert.deepEqual([job.id, job.payload.toString()], [id, 'hello'])
  const stats = await client.statsJob(id)
  assert.equal(value(stats, 'tube'), tube)
  assert.equal(value(stats, 'state'), 'reserved')
  assert.deepEqual([value(stats, 'pri'), value(stats, 'ttr')], ['7', '30'])
  await client.delete(id)
  await assert.rejects(client.statsJob(id), /NOT_FOUND/)
})

test('order by priority', async tube => {
  const client = await connect(tube)
  for (const priority of [5, 1, 9, 1]) await client.put(String(priority), { priority })
  const order = []
  for (let i = 0; i < 4; i++) order.push((await client.reserveWithTimeout(0)).payload.toString())
  assert.deepEqual(order, ['1', '1', '5', '9'])
})

test('binary bodies', async tube => {
  const client = await connect(tube)
  const largest = Number(value(await client.stats(), 'max-job-size'))
  const full = Buffer.alloc(largest, everyByte)
  for (const body of [everyByte, Buffer.from('\r\n\r\n'), full]) {
    const id = await putRaw(tube, body)
    const job = await client.reserveWithTimeout(0)
    assert.equal(job.id, id)
    assert.ok(job.payload.equals(body))
    assert.ok((await client.peek(id)).payload.equals(body))
    await client.delete(id)
  }
  const text = '\u{1f980} ünïcode'
  await client.put(text)
  assert.equal((await client.reserve()).payload.toString(), text)
  await fails(client.put('x'.repeat(largest + 1)), 'JOB_TOO_BIG')
  assert.equal(await client.listTubeUsed(), tube)
})

test('delay and peek', async tube => {
  const client = await connect(tube)
  await fails(client.peekReady(), 'NOT_FOUND')
  await fails(client.peekDelayed(), 'NOT_FOUND')
  await fails(client.peekBuried(), 'NOT_FOUND')
  const late = await client.put('late', { delay: 100 })
  const soon = await client.put('soon')
  assert.equal((await client.peekDelayed()).id, late)
  assert.equal((await client.peekReady()).id, soon)
  assert.equal((await client.peek(late)).payload.toString(), 'late')
  await client.reserveJob(soon)
  await client.bury(soon)
  assert.equal((await client.peekBuried()).id, soon)
})

test('a delay ends', async tube => {
  const client = await connect(tube)
  const id = await client.put('late', { delay: 1 })
  await fails(client.reserveWithTimeout(0), 'TIMED_OUT')
  assert.equal((await client.reserveWithTimeout(10)).id, id)
})

test('release, bury, kick', async tube => {
  const client = await connect(tube)
  const id = await client.put('x')
  await client.reserve()
  await client.release(id, { priority: 3 })
  assert.equal(value(await client.statsJob(id), 'pri'), '3')
  await client.reserve()
  await client.release(id, { delay: 100 })
  assert.equal(value(await client.statsJob(id), 'state'), 'delayed')
  await client.kickJob(id)
  await client.reserve()
  await client.bury(id, 4)
  assert.equal(value(await client.statsJob(id), 'state'), 'buried')
  assert.equal(await client.kick(10), 1)
  assert.equal(await client.kick(10), 0)
  const stats = await client.statsJob(id)
  assert.deepEqual(['state', 'pri', 'releases', 'buries', 'kicks'].map(key => value(stats, key)), ['ready', '4', '2', '1', '2'])
})

test('touch keeps a job', async tube => {
  const client = await connect(tube)
  const other = await connect(tube)
  const id = await client.put('x', { ttr: 2 })
  await client.reserve()
  for (let i = 0; i < 3; i++) {
    await new Promise(resolve => setTimeout(resolve, 900))
    await client.touch(id)
  }
  await fails(other.reserveWithTimeout(0), 'TIMED_OUT')
  await fails(other.touch(id), 'NOT_FOUND')
  await client.delete(id)
})

test('time-outs', async tube => {
  const client = await connect(tube)
  await fails(client.reserveWithTimeout(0), 'TIMED_OUT')
  await fails(client.reserveWithTimeout(1), 'TIMED_OUT')
  const id = await client.put('x', { ttr: 1 })
  await client.reserve()
  await fails(client.reserve(), 'DEADLINE_SOON')
  await fails(client.reserveWithTimeout(5), 'DEADLINE_SOON')
  await client.delete(id)
})

test("another's jobs", async tube => {
  const client = await connect(tube)
  const other = await connect(tube)
  const id = await client.put('x')
  await client.reserve()
  await fails(other.delete(id), 'NOT_FOUND')
  await fails(other.release(id), 'NOT_FOUND')
  await fails(other.bury(id), 'NOT_FOUND')
  await fails(other.reserveJob(id), 'NOT_FOUND')
  await client.quit()
  assert.equal((await other.reserveWithTimeout(10)).id, id)
})

test('tubes', async tube => {
  const client = await connect(tube)
  const second = `${tube}-second`
  assert.equal(await client.listTubeUsed(), tube)
  assert.equal(await client.watch(second), 2)
  assert.deepEqual((await client.listTubesWatched()).trim().split('\n').sort(), ['---', `- ${tube}`, `- ${second}`].sort())
  assert.match(await client.listTubes(), new RegExp(`^- ${second}$`, 'm'))
  assert.equal(await client.ignore(tube), 1)
  await fails(client.ignore(second), 'NOT_IGNORED')
  await client.put('x')
  const stats = await client.statsTube(tube)
  assert.deepEqual(['name', 'current-jobs-ready', 'current-using'].map(key => value(stats, key)), [tube, '1', '1'])
  await assert.rejects(client.statsTube(`${tube}-unheard-of`), /NOT_FOUND/)
  await fails(client.use('-wrong'), 'BAD_FORMAT')
})

test('pause', async tube => {
  const client = await connect(tube)
  const id = await client.put('x')
  // jackd leaves out the CR LF of this one command.
  const paused = client.pauseTube(tube, { delay: 1 })
  await client.write(Buffer.from('\r\n'))
  await paused
  assert.equal(value(await client.statsTube(tube), 'pause'), '1')
  await fails(client.reserveWithTimeout(0), 'TIMED_OUT')
  assert.equal((await client.reserveWithTimeout(10)).id, id)
})

test('statistics', async tube => {
  const client = await connect(tube)
  const before = await client.stats()
  await client.delete(await client.put('x'))
  const after = await client.stats()
  for (const key of ['cmd-put', 'total-jobs']) assert.equal(value(after, key) - value(before, key), 1)
  assert.equal(value(after, 'draining'), 'false')
})

const TEST_MS_MAX = 30_000
let failed = 0
for (const [number, { name, run }] of tests.entries()) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('no answer')), TEST_MS_MAX)
  })
  try {
    await Promise.race([run(`jackd-${number}`), late])
  } catch (error) {
    failed += 1
    console.log(`${name}:`, error)
  }
  clearTimeout(timer)
  for (const client of open.splice(0)) client.socket.destroy()
}
const { version } = require('jackd/package.json')
console.log(`jackd ${version} over ${address}: ${tests.length - failed} passed, ${failed} failed`)
process.exit(failed > 0 ? 1 : 0)
