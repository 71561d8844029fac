// Takes the pictures of the documents, of a server that producers and workers use.
//
// Usage: node screenshots.mjs DIRECTORY

import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { changeServer, closeAll, Console, PHONE, Server, sleep } from './kit.mjs'

const DIRECTORY = process.argv[2]
const BYTES_MAX = 160_000
const VIEWPORT = { width: 1280, height: 860 }
const LOAD_MS = 50_000

// Their names, and how much is put into them.
const TUBES = [
  ['email.welcome', 40],
  ['email.invoice', 25],
  ['image.thumbnail', 60],
  ['image.ocr', 12],
  ['search.index', 90],
  ['billing.capture', 8],
  ['webhook.deliver', 45],
  ['report.nightly', 3],
  ['video.transcode', 5],
]

const body = (tube) =>
  JSON.stringify({
    task: tube,
    id: Math.floor(Math.random() * 1e6),
    attempt: 1,
    to: 'someone@example.org',
    options: { locale: 'en', retry: true },
  })

/** Puts the jobs of a server that has run for some time. */
async function fill(producer) {
  for (const [tube, amount] of TUBES) {
    for (let job = 0; job < amount * 20; job += 1) await producer.put(tube, body(tube))
    for (let job = 0; job < amount; job += 1) await producer.put(tube, body(tube), { delay: 600 + job })
  }
  await producer.ask('pause-tube report.nightly 5400')
}

/** Puts and works, until `isRunning` is false. */
async function load(server, producer, isRunning) {
  const worker = await server.client()
  for (const [tube] of TUBES) await worker.ask(`watch ${tube}`)
  const held = []
  for (let step = 0; isRunning(); step += 1) {
    const wave = 1 + Math.sin(step / 25)
    for (const [tube, amount] of TUBES) {
      for (let job = 0; job < (amount * wave) / 8; job += 1)
        await producer.put(tube, body(tube), { delay: Math.random() < 0.02 ? 300 : 0 })
    }
    for (let job = 0; job < 36; job += 1) {
      held.push(await worker.take())
      if (held.length > 60) {
        const id = held.shift()
        await worker.ask(Math.random() < 0.004 ? `bury ${id} 1024` : `delete ${id}`)
      }
    }
    await sleep(90)
  }
}

async function picture(view, name, options = {}) {
  const file = path.join(DIRECTORY, `console-${name}.png`)
  await view.page.screenshot({ path: file, ...options })
  const { size } = fs.statSync(file)
  assert.ok(size < BYTES_MAX, `${file} has ${size} bytes`)
  console.log(`${file}: ${size} bytes`)
}

const server = await Server.start({ flags: ['--http-allow-writes', '--max-memory', '64m', '-f', '50'], wal: true })
const producer = await server.client()
await fill(producer)
let isRunning = true
const loaded = load(server, producer, () => isRunning)
// Names of the machine that takes the pictures do not belong in them.
const before = (page) =>
  changeServer(page, (server) => ({
    ...server,
    hostname: 'queue-1',
    job_log: { ...server.job_log, directory: '/var/lib/beanring' },
  }))
const open = (hash, options) => Console.open(server, hash, { viewport: VIEWPORT, before, ...options })
const views = {
  overview: await open('#/'),
  'overview-dark': await open('#/', { scheme: 'dark' }),
  tubes: await open('#/tubes?sort=ready&order=desc'),
  tube: await open(`#/tubes/${encodeURIComponent('search.index')}`),
  phone: await open('#/', { viewport: PHONE }),
}
await sleep(LOAD_MS)
for (const [name, view] of Object.entries(views)) await picture(view, name)
const { id } = await server.api(`tubes/${encodeURIComponent('search.index')}/next/delayed`)
const job = await open(`#/jobs/${id}`)
await job.shows('pre.body', /task/)
await picture(job, 'job')
isRunning = false
await loaded
await closeAll()
