// What the checks of the console share: servers, a client of the protocol, and pages that report every fault.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'

const require = createRequire(path.resolve(process.env.CONSOLE_NODE, 'index.js'))
const { chromium } = require('playwright-core')
export const AXE = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8')

export const HOST = '127.0.0.83'
const PROGRAM = process.env.CONSOLE_PROGRAM
export const WIDE = { width: 1440, height: 900 }
export const PHONE = { width: 360, height: 740 }
const PATIENCE_MS = 15000

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits until `condition` returns something true, and returns it. */
export async function until(what, condition, patience = PATIENCE_MS) {
  const end = Date.now() + patience
  for (;;) {
    const result = await condition()
    if (result) return result
    assert.ok(Date.now() < end, `${what}: not within ${patience} ms`)
    await sleep(30)
  }
}

const listening = () =>
  new Promise((resolve, reject) => {
    const probe = net.createServer()
    probe.on('error', reject)
    probe.listen(0, HOST, () => resolve(probe))
  })

/** All are taken before one is free again: the kernel may give the same port twice. */
async function freePorts(count) {
  const probes = await Promise.all(Array.from({ length: count }, listening))
  const ports = probes.map((probe) => probe.address().port)
  await Promise.all(probes.map((probe) => new Promise((resolve) => probe.close(resolve))))
  return ports
}

const running = new Set()

// Also where an error ends the run at once.
process.on('exit', () => {
  for (const server of running) server.child.kill('SIGKILL')
})

/** A server in a scratch directory of its own. */
export class Server {
  static async start({ flags = ['--http-allow-writes'], wal = false } = {}) {
    const server = new Server()
    server.directory = fs.mkdtempSync(path.join(os.tmpdir(), 'beanring-console-'))
    const [port, httpPort] = await freePorts(2)
    Object.assign(server, { port, httpPort })
    server.url = `http://${HOST}:${server.httpPort}/`
    server.wal = path.join(server.directory, 'wal')
    fs.mkdirSync(server.wal)
    const log = wal ? ['-b', server.wal, '-f', '0'] : []
    server.arguments = ['-l', HOST, '-p', String(server.port), '--http', `${HOST}:${server.httpPort}`, ...log, ...flags]
    await server.launch()
    return server
  }

  async launch() {
    const output = fs.openSync(path.join(this.directory, 'stderr'), 'a')
    this.child = spawn(PROGRAM, this.arguments, { stdio: ['ignore', output, output] })
    fs.closeSync(output)
    running.add(this)
    this.ended = new Promise((resolve) => this.child.once('exit', resolve))
    await until('the server answers', async () => {
      assert.equal(this.child.exitCode, null, this.log())
      return (await fetch(`${this.url}healthz`).catch(() => null))?.ok
    })
  }

  signal(name) {
    this.child.kill(name)
  }

  async end() {
    this.child.kill('SIGKILL')
    await this.ended
  }

  async close() {
    await this.end()
    running.delete(this)
    fs.rmSync(this.directory, { recursive: true })
  }

  log() {
    return fs.readFileSync(path.join(this.directory, 'stderr'), 'utf8')
  }

  /** Calls the HTTP API as the console does. Returns the parsed answer. */
  async api(target, options = {}) {
    const response = await fetch(`${this.url}api/v1/${target}`, options)
    return response.json()
  }

  post(target, body = {}) {
    return this.api(target, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
  }

  client() {
    return Client.connect(this.port)
  }
}

/** A client of the beanstalk protocol. */
export class Client {
  #socket
  #input = Buffer.alloc(0)
  #wake = () => {}

  static connect(port) {
    return new Promise((resolve, reject) => {
      const client = new Client()
      client.#socket = net.connect(port, HOST, () => resolve(client))
      client.#socket.on('error', reject)
      client.#socket.on('data', (bytes) => {
        client.#input = Buffer.concat([client.#input, bytes])
        client.#wake()
      })
    })
  }

  send(bytes) {
    this.#socket.write(bytes)
  }

  async #take(length) {
    const end = () => (length === null ? this.#input.indexOf('\r\n') : this.#input.length >= length + 2 ? length : -1)
    while (end() < 0) await new Promise((resolve) => (this.#wake = resolve))
    const at = end()
    const taken = this.#input.subarray(0, at)
    this.#input = this.#input.subarray(at + 2)
    return taken
  }

  async line() {
    return (await this.#take(null)).toString()
  }

  async ask(command) {
    this.send(`${command}\r\n`)
    return this.line()
  }

  /** Puts a job, and returns its id. */
  async put(tube, body, { priority = 1024, delay = 0, ttr = 600, tags = null } = {}) {
    const bytes = Buffer.from(body)
    const rest = tags === null ? '' : ` ${tags}`
    this.send(`use ${tube}\r\nput ${priority} ${delay} ${ttr} ${bytes.length}${rest}\r\n`)
    this.send(Buffer.concat([bytes, Buffer.from('\r\n')]))
    assert.equal(await this.line(), `USING ${tube}`)
    const reply = await this.line()
    assert.match(reply, /^INSERTED \d+$/)
    return Number(reply.split(' ')[1])
  }

  /** Reserves a job of a tube, and returns its id. */
  async reserve(tube) {
    await this.ask(`watch ${tube}`)
    await this.ask('ignore default')
    return this.take()
  }

  /** Reserves a job of the tubes that it watches, and returns its id. */
  async take() {
    const [word, id, length] = (await this.ask('reserve-with-timeout 5')).split(' ')
    assert.equal(word, 'RESERVED')
    await this.#take(Number(length))
    return Number(id)
  }

  close() {
    this.#socket.destroy()
  }
}

let browser = null

async function launched() {
  browser ??= await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-dev-shm-usage'],
  })
  return browser
}

/** Ends all that was started. */
export async function closeAll() {
  await browser?.close()
  for (const server of running)
    await server.end().then(() => fs.rmSync(server.directory, { recursive: true, force: true }))
}

// In the page: counts readings that run at a time, and what would run if markup from the server became part of the page.
const WATCH = () => {
  window.watched = { running: 0, most: 0, requests: [] }
  const real = window.fetch
  window.fetch = async (target, options = {}) => {
    const { watched } = window
    watched.requests.push(`${options.method ?? 'GET'} ${target}`)
    watched.running += 1
    watched.most = Math.max(watched.most, watched.running)
    let isOver = false
    const over = () => {
      if (!isOver) watched.running -= 1
      isOver = true
    }
    options.signal?.addEventListener('abort', over)
    try {
      return await real(target, options)
    } finally {
      over()
    }
  }
  window.alert = () => {
    window.wasRun = true
  }
}

/** A page of the console. `close` fails if the page has reported a fault. */
export class Console {
  static async open(
    server,
    hash = '#/',
    { viewport = WIDE, scheme = 'light', expected = [], before = async () => {} } = {},
  ) {
    const view = new Console()
    view.server = server
    view.faults = []
    view.context = await (await launched()).newContext({ viewport, colorScheme: scheme, acceptDownloads: true })
    view.page = await view.context.newPage()
    view.page.setDefaultTimeout(PATIENCE_MS)
    await view.page.addInitScript(WATCH)
    // A browser reports each answer that is an error, and each broken connection. A check names those that it causes.
    const isExpected = (text) => expected.some((pattern) => pattern.test(text))
    view.page.on('console', (message) => {
      const text = `${message.type()}: ${message.text()} (${message.location().url})`
      if (['error', 'warning'].includes(message.type()) && !isExpected(text)) view.faults.push(text)
    })
    view.page.on('pageerror', (error) => view.faults.push(String(error.stack)))
    view.page.on('request', (request) => {
      const url = request.url()
      if (!url.startsWith(server.url) && !url.startsWith('blob:')) view.faults.push(`a request to ${url}`)
    })
    await before(view.page)
    await view.go(hash)
    return view
  }

  /** Shows another page of the console, and waits until it is there. */
  async go(hash) {
    await this.page.goto(`${this.server.url}${hash}`)
    await this.page.locator('h1').first().waitFor()
  }

  text(selector) {
    return this.page.locator(selector).first().innerText()
  }

  /** Waits until the first element of a selector has a text that matches. */
  async shows(selector, expected, patience = PATIENCE_MS) {
    const pattern =
      expected instanceof RegExp ? expected : { test: (text) => text === expected, toString: () => expected }
    let last = null
    const read = async () => {
      last = await this.page
        .locator(selector)
        .first()
        .innerText({ timeout: 1000 })
        .catch(() => null)
      return last !== null && pattern.test(last)
    }
    await until(`${selector} shows ${expected}`, read, patience).catch((error) => {
      throw new Error(`${error.message}; it shows ${JSON.stringify(last)}`)
    })
  }

  fact(name) {
    return `[data-fact="${name}"]:visible dd`
  }

  button(name) {
    return this.page.getByRole('button', { name, exact: true })
  }

  async notice(expected) {
    await until(`a notice ${expected}`, async () =>
      (await this.page.locator('.notice p').allInnerTexts()).some((text) => expected.test(text)),
    )
  }

  watched() {
    return this.page.evaluate(() => window.watched)
  }

  async close() {
    if (!this.page.isClosed()) {
      const { most } = await this.watched()
      assert.ok(most <= 1, `${most} requests at a time`)
      assert.equal(await this.page.evaluate(() => window.wasRun === true), false, 'a script of a body has run')
    }
    await this.context.close()
    assert.deepEqual(this.faults, [])
  }
}

/** Has the page read a changed answer about the server. `change` takes the answer and returns another. */
export function changeServer(page, change) {
  return page.route('**/api/v1/server', async (route) => {
    try {
      const response = await route.fetch()
      await route.fulfill({ response, json: change(await response.json()) })
    } catch (error) {
      // The page may have given up the request. One that is closed needs no answer, which may then end in a time-out.
      if (!page.isClosed() && !/disposed|closed|handled|aborted/.test(error.message)) throw error
    }
  })
}

/** Runs `use` with a server and a page of it, and closes both. */
export async function withConsole(options, use) {
  const server = await Server.start(options.server)
  const client = await server.client()
  const view = await Console.open(server, options.hash, options)
  await use(view, server, client)
  await view.close()
  client.close()
  await server.close()
}
