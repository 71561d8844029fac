// How every page looks: no violation that axe-core finds, nothing that overlaps, nothing wider than the window.

import assert from 'node:assert/strict'
import path from 'node:path'
import { AXE, changeServer, Console, PHONE, Server, sleep, until, WIDE } from './kit.mjs'

const LONG = 'a-very-long-name-of-a-tube-that-says-everything/'.repeat(4)
const MANY = 4294967295
// Where a picture of each view is saved for people, if anywhere.
const { PICTURES } = process.env

// Each way to see the console: where to go, and what to do before it is looked at.
const VIEWS = {
  overview: { hash: '#/' },
  'overview with a dialog': { hash: '#/', act: (view) => view.button('Drain').click() },
  tubes: { hash: '#/tubes' },
  'tubes by their oldest jobs': { hash: '#/tubes?sort=oldest&order=desc' },
  'tubes, none found': { hash: '#/tubes?filter=nothing', act: (view) => view.page.getByText('No tube name contains').waitFor() },
  tube: {
    hash: '#/tubes/mail',
    act: (view) =>
      view
        .button('Next ready')
        .click()
        .then(() => view.shows('pre.body', /./)),
  },
  'tube with a list of jobs': {
    hash: '#/tubes/mail',
    act: (view) =>
      view
        .button('List ready')
        .click()
        .then(() => view.button('Top of the tube').waitFor()),
  },
  'list of jobs not loaded': {
    hash: '#/tubes/mail',
    before: (page) => page.route('**/mail/jobs?*', (route) => route.abort('connectionrefused')),
    act: (view) =>
      view
        .button('List ready')
        .click()
        .then(() => view.page.locator('.failed:visible').waitFor()),
  },
  'next job not loaded': {
    hash: '#/tubes/mail',
    before: (page) => page.route('**/next/*', (route) => route.abort('connectionrefused')),
    act: (view) =>
      view
        .button('Next ready')
        .click()
        .then(() => view.page.locator('.failed:visible').waitFor()),
  },
  'tube with a long name': { hash: `#/tubes/${encodeURIComponent(LONG)}` },
  'tube that is missing': { hash: '#/tubes/nowhere' },
  'find a job or a group': { hash: '#/jobs' },
  job: { hash: ({ text }) => `#/jobs/${text}` },
  'job with a binary body': { hash: ({ binary }) => `#/jobs/${binary}` },
  'job with an empty body': { hash: ({ empty }) => `#/jobs/${empty}` },
  'job that is missing': { hash: '#/jobs/999' },
  'held job': { hash: ({ held }) => `#/jobs/${held}` },
  group: { hash: '#/groups/parts' },
  'group that is missing': { hash: '#/groups/none' },
  'tube with rules': { hash: '#/tubes/images' },
  'rule refused': {
    hash: '#/tubes/mail',
    act: async (view) => {
      await view.page.getByLabel('Rule', { exact: true }).selectOption('Dead-letter tube')
      await view.page.getByLabel('Name of another tube').fill('mail')
      await view.button('Set the rule').click()
      await view.page.locator('.field .problem').waitFor()
    },
  },
  'jobs to move': { hash: '#/tubes/mail', act: (view) => view.button('Move jobs').click() },
  schedules: { hash: '#/schedules', act: (view) => view.page.locator('.job-rows:visible').waitFor() },
  schedule: { hash: '#/schedules/nightly' },
  'schedule that is missing': { hash: '#/schedules/none' },
  put: { hash: '#/put' },
  'put with tags': { hash: '#/put', act: (view) => view.page.getByText('Tags', { exact: true }).click() },
  'no such page': { hash: '#/nothing' },
  notices: {
    hash: '#/tubes/mail',
    act: (view) =>
      view
        .button('Kick')
        .click()
        .then(() => view.notice(/Kicked/)),
  },
  'read-only': { hash: '#/tubes/mail', before: (page) => rewrite(page, { may_write: false }) },
  'read-only job': { hash: ({ text }) => `#/jobs/${text}`, before: (page) => rewrite(page, { may_write: false }) },
  'draining put': { hash: '#/put', before: (page) => rewrite(page, { draining: true }) },
  warnings: {
    hash: '#/',
    before: (page) =>
      rewrite(page, {
        draining: true,
        warnings: [
          { kind: 'disk-full', text: 'The disk of the job log is full. Puts are refused until there is space.' },
        ],
        memory: { used_bytes: 880e6, reserved_bytes: 100e6, max_bytes: 1e9, resident_bytes: 1.1e9 },
        totals: Object.fromEntries(TOTALS.map((key) => [key, 9e15])),
      }),
  },
  'server gone': {
    hash: '#/',
    before: (page) => breakAfter(page, 2),
    act: (view) => view.page.locator('[data-banner="gone"]').waitFor(),
  },
  'not loaded': {
    hash: '#/tubes',
    before: (page) => breakAfter(page, 0),
    act: (view) => view.page.locator('.not-loaded').waitFor(),
  },
  'access refused': { hash: '#/', before: (page) => refuse(page, 403) },
  token: { hash: '#/', before: (page) => refuse(page, 401) },
  'wrong token': {
    hash: '#/',
    before: (page) => refuse(page, 401),
    act: async (view) => {
      await view.page.getByLabel('Token', { exact: true }).fill('x'.repeat(20))
      await view.page.keyboard.press('Enter')
      await view.page.locator('.problem').waitFor()
    },
  },
}
const TOTALS = ['puts', 'reserves', 'deletes', 'releases', 'buries', 'kicks', 'moves', 'timeouts', 'connections']

const rewrite = (page, changes) => changeServer(page, (server) => ({ ...server, ...changes }))

const refuse = (page, status) =>
  page.route('**/api/v1/**', (route) =>
    route.fulfill({
      status,
      json: { error: 'refused', message: 'Start the server with --http-token FILE, and send its content.' },
    }),
  )

function breakAfter(page, requests) {
  let left = requests
  return page.route('**/api/v1/**', (route) => {
    left -= 1
    return left >= 0 ? route.continue() : route.abort('connectionrefused')
  })
}

/** A server with jobs in every state. Returns it and the ids of some jobs. */
export async function busyServer() {
  const server = await Server.start({ flags: ['--http-allow-writes', '--max-memory', '64m'], wal: true })
  const client = await server.client()
  const text = await client.put(
    'mail',
    JSON.stringify({ to: 'someone@example.org', template: 'welcome', tries: [1, 2, 3] }),
    { priority: MANY },
  )
  const binary = await client.put('images', Buffer.from(Array.from({ length: 600 }, (_, index) => (index * 7) % 256)), {
    delay: 4000,
  })
  await client.put(LONG, 'x')
  await client.put('mail', 'y', { delay: 3000 })
  await client.put('parts', 'x', { tags: `grp:parts con:${LONG}:1000000` })
  const held = await client.put('mail', 'x', { tags: `idp:${LONG} grp:${LONG} aft:parts` })
  for (let tube = 0; tube < 60; tube += 1) await client.put(`tube-${tube}`, 'x')
  await client.ask('pause-tube tube-3 4000')
  for (const rule of [
    'max-attempts 4294967295',
    'max-jobs 1000',
    'max-bytes 1073741824',
    'default-ttr 90',
    'retention 604800',
    'rate 1000000',
    `dead-letter ${LONG}`,
  ])
    await client.ask(`tube-config images ${rule}`)
  const empty = await client.put('parts', '', { priority: MANY })
  for (const line of ['nightly 7 0 60 1 mail 0 3 * * 1-5 Europe/Berlin', `${LONG} 7 0 60 1 ${LONG} every:366d`]) {
    client.send(`schedule-put ${line}\r\nx\r\n`)
    assert.equal(await client.line(), 'SCHEDULED')
  }
  assert.match(await client.ask('schedule-run nightly'), /^INSERTED/)
  return { server, client, text, binary, held, empty }
}

const AT = [
  [WIDE, 'light'],
  [WIDE, 'dark'],
  [PHONE, 'light'],
  [PHONE, 'dark'],
]

// Texts that lie on each other. What is scrolled out of a box, and what covers a page on purpose, does not count.
const OVERLAPS = () => {
  const covers = document.querySelector('dialog[open]') ?? document.querySelector('main')
  const clip = (node) => {
    let { left, top, right, bottom } = node.getBoundingClientRect()
    for (let box = node.parentElement; box !== null; box = box.parentElement) {
      if (getComputedStyle(box).overflow === 'visible') continue
      const outer = box.getBoundingClientRect()
      left = Math.max(left, outer.left)
      top = Math.max(top, outer.top)
      right = Math.min(right, outer.right)
      bottom = Math.min(bottom, outer.bottom)
    }
    return { node, left, top, right, bottom }
  }
  const isText = (node) =>
    node.checkVisibility() &&
    node.childElementCount === 0 &&
    (node.textContent.trim() !== '' || ['INPUT', 'SELECT', 'TEXTAREA'].includes(node.tagName)) &&
    node.type !== 'radio'
  const inside = [...covers.querySelectorAll('*'), ...document.querySelectorAll('header *, .banner *')]
  const boxes = inside
    .filter(isText)
    .map(clip)
    .filter((box) => box.right - box.left > 1 && box.bottom - box.top > 1)
  const found = []
  for (const [index, one] of boxes.entries()) {
    for (const other of boxes.slice(index + 1)) {
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left)
      const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top)
      if (wide > 2 && high > 3)
        found.push(`${one.node.textContent.slice(0, 30)} | ${other.node.textContent.slice(0, 30)}`)
    }
  }
  return found
}

async function look(view, name) {
  await view.page.evaluate(AXE)
  const { violations, passes } = await view.page.evaluate(() =>
    window.axe.run(document, {
      runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    }),
  )
  return {
    name,
    over: await view.page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth),
    overlaps: await view.page.evaluate(OVERLAPS),
    violations: violations.flatMap(({ id, nodes }) =>
      nodes.map((node) => `${id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`),
    ),
    passes: passes.length,
  }
}

async function lookAtAll() {
  const busy = await busyServer()
  // One window of each kind at a time.
  const looks = await Promise.all(
    AT.map(async ([viewport, scheme]) => {
      const own = []
      for (const [name, { hash, act, before }] of Object.entries(VIEWS)) {
        const to = typeof hash === 'string' ? hash : hash(busy)
        const view = await Console.open(busy.server, to, { viewport, scheme, before, expected: [/Failed to load/] })
        await until('it has an answer', async () => !/Connecting/.test(await view.text('#connection-text')))
        await act?.(view)
        await sleep(150)
        if (PICTURES) {
          const file = `${name.replaceAll(/\W+/g, '-')}-${viewport.width}-${scheme}.png`
          await view.page.screenshot({ path: path.join(PICTURES, file), fullPage: true })
        }
        own.push(await look(view, `${name}, ${scheme}, ${viewport.width} pixels`))
        await view.context.close()
      }
      return own
    }),
  )
  busy.client.close()
  await busy.server.close()
  return looks.flat()
}

// Both checks need the same pages.
let looked = null
const allLooks = () => (looked ??= lookAtAll())

async function nothing_overlaps_or_is_wider_than_the_window() {
  for (const { name, over, overlaps } of await allLooks()) {
    assert.ok(over <= 0, `${name}: ${over} pixels too wide`)
    assert.deepEqual(overlaps, [], name)
  }
}

async function axe_finds_no_violation() {
  const looks = await allLooks()
  for (const { name, violations } of looks) assert.deepEqual(violations, [], name)
  const rules = looks.reduce((sum, { passes }) => sum + passes, 0)
  console.log(`  ${looks.length} views, in two schemes and two widths: ${rules} rules passed`)
}

async function a_chart_hides_no_label() {
  const server = await Server.start()
  const client = await server.client()
  await client.put('mail', 'x')
  const before = (page) =>
    page.route('**/api/v1/tubes/mail', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), ready: 20_000 } })
      // The hint stays for as long as there is one sample.
      await page.unroute('**/api/v1/tubes/mail')
      await page.route('**/api/v1/server', () => {})
    })
  const view = await Console.open(server, '#/tubes/mail', { viewport: PHONE, before })
  await view.shows('.tile.ready .tile-value', '20,000')
  const { hint, plot, right, label } = await view.page
    .locator('.chart')
    .first()
    .evaluate((chart) => {
      const box = (selector) => chart.querySelector(selector).getBoundingClientRect()
      const context = document.createElement('canvas').getContext('2d')
      context.font = '11px system-ui, sans-serif'
      const label = context.measureText('00:00:00').width
      return { hint: box('.chart-hint'), plot: box('.u-over'), right: box('canvas').right, label }
    })
  assert.ok(hint.width > 0 && hint.left >= plot.left && hint.right <= plot.right, 'the hint is beside the axis')
  assert.ok(right - plot.right >= label / 2, `${right - plot.right} pixels for half of ${label}`)
  await view.page.unrouteAll({ behavior: 'ignoreErrors' })
  await view.context.close()
  client.close()
  await server.close()
}

export const checks = { a_chart_hides_no_label, nothing_overlaps_or_is_wider_than_the_window, axe_finds_no_violation }
