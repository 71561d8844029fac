// The console of a standby, which has no jobs to show.

import assert from 'node:assert/strict'
import { changeServer, until, withConsole } from './kit.mjs'

const LEADER = 'https://queue.example/one/'

/** What the API of a standby says, as the tests of replication/replicate/shown.rs find it. */
const standby = (leader, more = {}) => (server) => ({
  ...server,
  jobs: null,
  tubes: null,
  job_log: null,
  replication: {
    role: 'standby',
    leader,
    epoch: 7,
    lease_seconds: null,
    lag_seconds: 0.02,
    lag_positions: 0,
    appends_in_flight: 0,
    append_p99_seconds: null,
    damaged: false,
    takeovers: 0,
    fences: 0,
    forwarded_connections: 3,
    ...more,
  },
})

const as = (change) => ({ before: (page) => changeServer(page, (server) => change(server)) })
const banner = '[data-banner="standby"]'

async function a_standby_leads_to_the_console_of_the_leader() {
  await withConsole(as(standby({ address: '10.0.0.1:11401', http: LEADER })), async (view) => {
    await view.shows(`${banner} p`, 'This server is a standby: the leader has the jobs.')
    const link = view.page.locator(`${banner} a`)
    assert.equal(await link.getAttribute('href'), LEADER)
    assert.equal(await link.getAttribute('rel'), 'noreferrer')
    await view.shows(view.fact('role'), 'standby')
    await view.shows(view.fact('lag'), '20 ms, 0 chunks')
    await view.shows(view.fact('leader'), LEADER)
    await view.shows(view.fact('accepts'), 'forwarded to the leader')
    // Nothing that is true of a leader only.
    const text = await view.text('main')
    for (const false_here of ['There is no job log', 'Ready', 'Puts', 'Workers']) assert.ok(!text.includes(false_here), text)
    assert.equal(await view.button('Drain').count(), 0)
    await view.go('#/tubes')
    await view.shows('.not-loaded', 'Not loaded: this server is a standby.')
    assert.deepEqual(
      (await view.watched()).requests.filter((request) => !request.endsWith('api/v1/server')),
      [],
    )
  })
}

async function a_standby_says_how_to_name_the_console_of_the_leader() {
  await withConsole(as(standby({ address: '[fd00::1]:11401', http: null })), async (view) => {
    await view.shows(`${banner} p`, /which is on \[fd00::1\]\. Start each server with --advertise-http/)
    await view.shows(view.fact('leader'), '[fd00::1]')
    assert.equal(await view.page.locator(`${banner} a`).count(), 0)
  })
  await withConsole(as(standby(null, { forwarded_connections: null })), async (view) => {
    await view.shows(view.fact('leader'), 'none that this standby knows')
    await view.shows(view.fact('accepts'), 'clients wait until this server leads')
  })
}

async function a_page_does_not_keep_what_a_former_leader_has_shown() {
  let change = (server) => server
  const before = (page) => changeServer(page, (server) => change(server))
  await withConsole({ hash: '#/tubes', before }, async (view) => {
    await view.shows('.table-row .cell-name a', 'default')
    change = standby({ address: '10.0.0.1:11401', http: LEADER })
    await view.shows('.not-loaded', 'Not loaded: this server is a standby.')
    assert.equal(await view.page.locator('.table-row .cell-name a').count(), 0)
    // It leads again.
    change = (server) => server
    await view.shows('.table-row .cell-name a', 'default')
    await until('the banner is gone', async () => (await view.page.locator(banner).count()) === 0)
    await view.go('#/')
    await view.shows('.tile.ready .tile-value', '0')
  })
}

export const checks = {
  a_standby_leads_to_the_console_of_the_leader,
  a_standby_says_how_to_name_the_console_of_the_leader,
  a_page_does_not_keep_what_a_former_leader_has_shown,
}
