// The overview: what the whole server does now, and has done while this page was open.

import { act, token } from './api.js'
import { ask, notify } from './actions.js'
import { Chart } from './chart.js'
import * as format from './format.js'
import { card, el, facts, setText, show } from './dom.js'
import { Controls, isStandby } from './shell.js'

export const STATES = [
  { name: 'ready', label: 'Ready', color: 'ready' },
  { name: 'reserved', label: 'Reserved', color: 'reserved' },
  { name: 'delayed', label: 'Delayed', color: 'delayed' },
  { name: 'buried', label: 'Buried', color: 'buried' },
  { name: 'held', label: 'Held', color: 'held', rare: true },
]

const RATES = [
  { name: 'puts', label: 'Puts', color: 'ready' },
  { name: 'reserves', label: 'Reserves', color: 'reserved' },
  { name: 'deletes', label: 'Deletes', color: 'delayed' },
  { name: 'timeouts', label: 'Timeouts', color: 'buried' },
]

/**
 * Tiles with the number of jobs in each state. Returns the node, and a function that takes the numbers. Held jobs have a
 * tile while there are some.
 */
export function stateTiles() {
  const values = STATES.map(() => el('span', { class: 'tile-value', text: '–' }))
  const tiles = STATES.map((state, index) =>
    el('li', { class: `tile ${state.color}` }, el('span', { class: 'tile-label', text: state.label }), values[index]),
  )
  const node = el('ul', { class: 'tiles', 'aria-label': 'Jobs by state' }, ...tiles)
  const held = tiles.at(-1)
  held.hidden = true
  const set = (jobs) => {
    STATES.forEach((state, index) => setText(values[index], format.count(jobs[state.name])))
    show(held, jobs.held > 0)
  }
  return { node, set }
}

function meter(label) {
  const fill = el('div', { class: 'meter-fill' })
  const node = el(
    'div',
    { class: 'meter', role: 'meter', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '100' },
    fill,
  )
  const set = (share) => {
    const percent = Math.min(100, Math.round(share * 100))
    node.setAttribute('aria-valuenow', String(percent))
    node.setAttribute('aria-valuetext', `${percent} %`)
    node.classList.toggle('high', share > 0.9)
    fill.style.width = `${percent}%`
  }
  return { node, set }
}

function memoryCard() {
  const bar = meter('Memory counted against the limit')
  const rows = facts({
    used: 'Counted against the limit',
    reserved: 'Of that kept for later commands',
    limit: 'Memory limit',
    resident: 'Resident memory (RSS)',
  })
  const hint = 'A buffer counts with its whole size, also where it is not used yet. So the count can exceed the RSS.'
  const node = card('Memory', bar.node, rows.node, el('p', { class: 'hint', text: hint }))
  const set = ({ used_bytes, reserved_bytes, max_bytes, resident_bytes }) => {
    const counted = used_bytes + reserved_bytes
    show(bar.node, max_bytes !== null)
    if (max_bytes !== null) bar.set(counted / max_bytes)
    rows.set({
      used: format.bytes(counted),
      reserved: format.bytes(reserved_bytes),
      limit: max_bytes === null ? 'none' : format.bytes(max_bytes),
      resident: resident_bytes === null ? null : format.bytes(resident_bytes),
    })
  }
  return { node, set }
}

const SYNC = {
  always: () => 'before each reply',
  interval: (log) => `every ${format.shortTime(log.sync_interval_ms / 1000)}`,
  'no-sync': () => 'never',
}

function jobLogCard() {
  const bar = meter('Live data in the job log')
  const rows = facts({
    directory: 'Directory',
    database: 'Kept in',
    sync: 'fsync',
    p99: 'fsync time, p99',
    segments: 'Segments',
    size: 'Size',
    live: 'Live data',
    stalled: 'Writes',
  })
  const none = el('p', {
    class: 'hint',
    text: 'There is no job log: jobs are lost when the server stops. Start it with -b DIR to keep them.',
  })
  const node = card('Job log', none, bar.node, rows.node)
  const set = (log, isReplicated) => {
    show(none, log === null)
    show(bar.node, log !== null)
    show(rows.node, log !== null)
    if (log === null) return
    bar.set(log.size_bytes === 0 ? 0 : log.live_bytes / log.size_bytes)
    bar.node.classList.remove('high')
    rows.set({
      directory: log.directory,
      database: isReplicated ? 'PostgreSQL' : null,
      sync: SYNC[log.sync_mode](log),
      p99: log.sync_p99_seconds === 0 ? null : format.shortTime(log.sync_p99_seconds),
      segments: format.count(log.segments),
      size: format.bytes(log.size_bytes),
      live: format.bytes(log.live_bytes),
      stalled: log.stalled ? 'stalled: the disk is full' : 'OK',
    })
  }
  return { node, set }
}

function leaderOf({ leader }) {
  if (leader === null) return 'none that this standby knows'
  if (leader.http !== null) return [el('a', { href: leader.http, rel: 'noreferrer', text: leader.http })]
  return leader.address === null ? 'there, and accepts no forwarded clients' : leader.address.replace(/:\d+$/, '')
}

// What becomes of a put at this server.
function acceptsOf({ draining, replication, warnings }) {
  if (replication?.role !== 'standby') {
    if (draining) return 'refused: draining'
    return warnings.some(({ kind }) => kind === 'puts-refused') ? 'some are refused' : 'accepted'
  }
  if (replication.forwarded_connections === null) return 'clients wait until this server leads'
  return replication.leader?.address ? 'forwarded to the leader' : 'clients wait for a leader'
}

function replicationCard() {
  const rows = facts({
    role: 'Role',
    leader: 'Leader',
    epoch: 'Epoch',
    lease: 'Lease',
    lag: 'Behind',
    inFlight: 'Appends in flight',
    p99: 'Append time, p99',
    takeovers: 'Take-overs',
    fences: 'Fences',
    forwarded: 'Forwarded connections',
  })
  const node = card('Replication', rows.node)
  const set = (state) => {
    show(node, state !== undefined)
    if (state === undefined) return
    const leads = state.role === 'leader'
    const p99 = state.append_p99_seconds
    rows.set({
      role: state.damaged ? `${state.role}, cannot follow the job log` : state.role,
      leader: leads ? null : leaderOf(state),
      epoch: format.count(state.epoch),
      lease: !leads ? null : state.lease_seconds > 0 ? `${format.shortTime(state.lease_seconds)} left` : 'over',
      lag: leads ? null : `${format.shortTime(state.lag_seconds)}, ${format.counted(state.lag_positions, 'chunk')}`,
      inFlight: leads ? format.count(state.appends_in_flight) : null,
      p99: p99 ? format.shortTime(p99) : null,
      takeovers: format.count(state.takeovers),
      fences: format.count(state.fences),
      forwarded: state.forwarded_connections === null ? null : format.count(state.forwarded_connections),
    })
  }
  return { node, set }
}

function drainControl(app) {
  const controls = new Controls()
  const drain = el('button', {
    type: 'button',
    text: 'Drain',
    on: {
      click: async () => {
        const yes = await ask(
          'Drain the server?',
          'It refuses new jobs until you undrain it. Workers can still reserve and delete jobs.',
          'Drain',
        )
        if (yes && (await app.act(() => act('drain'))) !== null) notify('The server is draining: it refuses new jobs.')
      },
    },
  })
  const undrain = el('button', {
    type: 'button',
    text: 'Undrain',
    on: {
      click: async () => {
        if ((await app.act(() => act('undrain'))) !== null) notify('The server accepts new jobs again.')
      },
    },
  })
  const forget = el('button', { type: 'button', text: 'Forget the token', on: { click: () => app.forgetToken() } })
  const node = el('div', {}, controls.group(drain, undrain), controls.note, forget)
  const set = (server) => {
    controls.update(server)
    show(forget, token.get() !== null)
    const [shown, hidden] = server.draining ? [undrain, drain] : [drain, undrain]
    show(shown, true)
    show(hidden, false, shown)
  }
  return { node, set }
}

function serverCards(app) {
  const server = facts({
    version: 'Version',
    driver: 'Driver',
    hostname: 'Host name',
    pid: 'Process id',
    id: 'Server id',
    uptime: 'Uptime',
    accepts: 'New jobs',
    size: 'Maximum job size',
  })
  const drain = drainControl(app)
  const connections = facts({
    clients: 'Clients',
    producers: 'Producers',
    workers: 'Workers',
    waiting: 'Waiting clients',
    max: 'Maximum',
  })
  const totals = facts({
    puts: 'Puts',
    reserves: 'Reserves',
    deletes: 'Deletes',
    releases: 'Releases',
    buries: 'Buries',
    kicks: 'Kicks',
    moves: 'Moves',
    timeouts: 'Timeouts',
    connections: 'Connections',
  })
  const cards = {
    connections: card('Connections', connections.node),
    totals: card('Since the server started', totals.node),
    server: card('Server', server.node, drain.node),
  }
  const set = (one) => {
    server.set({
      version: one.version,
      driver: one.driver,
      hostname: one.hostname,
      pid: String(one.pid),
      id: String(one.id),
      uptime: format.seconds(one.uptime_seconds),
      accepts: acceptsOf(one),
      size: format.exactBytes(one.limits.max_job_bytes),
    })
    show(drain.node, !isStandby(one))
    show(cards.connections, !isStandby(one))
    show(cards.totals, !isStandby(one))
    if (isStandby(one)) return
    drain.set(one)
    const { clients, producers, workers, waiting, max } = one.connections
    connections.set({
      clients: format.count(clients),
      producers: format.count(producers),
      workers: format.count(workers),
      waiting: format.count(waiting),
      max: max === null ? null : format.count(max),
    })
    totals.set(Object.fromEntries(Object.entries(one.totals).map(([key, value]) => [key, format.count(value)])))
  }
  return { ...cards, set }
}

export function overviewPage(app) {
  const tiles = stateTiles()
  const urgent = el('p', { class: 'hint' })
  const rates = new Chart({
    label: 'Throughput, per second',
    history: app.history,
    lines: RATES,
    format: format.rate,
    axisFormat: format.short,
  })
  const jobs = new Chart({
    label: 'Jobs by state',
    history: app.history,
    lines: STATES,
    format: format.count,
    axisFormat: format.short,
  })
  const memory = memoryCard()
  const log = jobLogCard()
  const replication = replicationCard()
  const others = serverCards(app)
  const charts = el(
    'div',
    { class: 'charts' },
    el('div', { class: 'card' }, rates.node),
    el('div', { class: 'card' }, jobs.node),
  )
  const node = el(
    'div',
    {},
    el('h1', { text: 'Overview' }),
    tiles.node,
    urgent,
    charts,
    el(
      'div',
      { class: 'cards' },
      el('div', { class: 'stack' }, memory.node, others.connections),
      el('div', { class: 'stack' }, log.node, replication.node),
      others.totals,
      others.server,
    ),
  )
  return {
    title: 'Overview',
    node,
    interval: 1000,
    serverChanged(server) {
      for (const part of [tiles.node, urgent, charts, log.node]) show(part, !isStandby(server))
      if (!isStandby(server)) {
        tiles.set(server.jobs)
        setText(
          urgent,
          `${format.counted(server.tubes, 'tube')}, ${format.counted(server.jobs.urgent, 'urgent job')} (ready, with a priority below 1024)`,
        )
        rates.update()
        jobs.update()
        log.set(server.job_log, server.replication !== undefined)
      }
      memory.set(server.memory)
      replication.set(server.replication)
      others.set(server)
    },
    close() {
      rates.close()
      jobs.close()
    },
  }
}
