// A tube: its counts over time, its times, and what can be done with it.

import { act, find } from './api.js'
import { ask, askFor, checkAgain, form, notify, Reading, tubeField } from './actions.js'
import { BodyView } from './body.js'
import { Chart } from './chart.js'
import * as format from './format.js'
import { card, el, facts, field, numberField, setText, show } from './dom.js'
import { History } from './history.js'
import { jobFacts, jobLink } from './job.js'
import { jobsCard } from './jobs.js'
import { STATES, stateTiles } from './overview.js'
import { NEVER } from './poll.js'
import { rulesCard } from './rules.js'
import { Controls } from './shell.js'
import { tubePath } from './tubes.js'

const RATES = [
  { name: 'puts', label: 'Puts', color: 'ready' },
  { name: 'deletes', label: 'Deletes', color: 'delayed' },
  { name: 'timeouts', label: 'Timeouts', color: 'buried' },
]

const MOVABLE = ['ready', 'delayed', 'buried']
const HISTORIES_MAX = 20
const INTERVAL_MS = 2000

// Kept when the page of a tube is left, so that its charts are there when one comes back.
const histories = new Map()

function historyOf(name) {
  const history =
    histories.get(name) ??
    new History(
      STATES.map((state) => state.name),
      RATES.map((rate) => rate.name),
    )
  histories.delete(name)
  histories.set(name, history)
  if (histories.size > HISTORIES_MAX) histories.delete(histories.keys().next().value)
  return history
}

function timesCard() {
  const rows = [
    ['queue_time', 'Queue time'],
    ['reserved_time', 'Reserved time'],
  ]
  const cells = new Map()
  const body = rows.map(([kind, label]) =>
    el(
      'tr',
      {},
      el('th', { scope: 'row', text: label }),
      ...['p50', 'p95', 'p99'].map((part) => {
        const cell = el('td', { text: '–' })
        cells.set(cell, (percentiles) => percentiles[kind][`${part}_seconds`])
        return cell
      }),
    ),
  )
  const head = el('tr', {}, el('td'), ...['p50', 'p95', 'p99'].map((part) => el('th', { scope: 'col', text: part })))
  const table = el('table', { class: 'times' }, el('thead', {}, head), el('tbody', {}, ...body))
  const set = (percentiles) => {
    for (const [cell, value] of cells) {
      const seconds = value(percentiles)
      setText(cell, seconds === 0 ? '–' : format.roundTime(seconds))
    }
  }
  return { node: card('Times, last 5 to 10 minutes', table), set }
}

/** Asks which jobs of a tube are to be moved, and moves them. */
async function moveJobs(app, name, tube) {
  const state = field('State', { tag: 'select' })
  for (const one of MOVABLE) state.input.append(el('option', { value: one, text: `${one} (${format.count(tube[one])})` }))
  state.input.value = MOVABLE.find((one) => tube[one] > 0) ?? MOVABLE[0]
  const count = numberField('Maximum number of jobs', tube[state.input.value], {
    min: 1,
    hint: 'The next ones are moved first.',
  })
  state.input.addEventListener('change', () => {
    count.input.value = tube[state.input.value]
  })
  const to = tubeField('To tube')
  const explanation = 'The jobs keep their ids, states, priorities and counters. The other tube is created if it does not exist.'
  let answer = null
  const move = () => ({ state: state.input.value, to: to.input.value, count: Number(count.input.value) })
  // A refusal is shown at the field, in the question that stays open.
  const carryOut = async () => {
    answer = await app.act(() => act(`${tubePath(name)}/move`, move()), to)
    return answer !== null || to.input.getAttribute('aria-invalid') === null
  }
  await askFor(`Move jobs of the tube ${name}`, explanation, [state, count, to], 'Move', carryOut)
  if (answer === null) return
  const done = `Moved ${format.counted(answer.moved, 'job')} to ${to.input.value}.`
  if (answer.reason === undefined) notify(done)
  else notify(`${done} The move stopped at job ${answer.stopped_at}: ${answer.reason}.`, true)
}

function actionsCard(app, name, controls) {
  let latest = null
  const pauseState = el('p', { class: 'pause-state' })
  const pauseFor = numberField('Seconds to pause', 60, { min: 1 })
  const pause = form('Pause the tube', 'Pause', [pauseFor], async () => {
    const seconds = Number(pauseFor.input.value)
    const done = await app.act(() => act(`${tubePath(name)}/pause`, { seconds }))
    if (done !== null) notify(`The tube is paused for ${format.seconds(seconds)}.`)
  })
  const resume = el('button', {
    type: 'button',
    text: 'Resume',
    on: {
      click: async () => {
        if ((await app.act(() => act(`${tubePath(name)}/pause`, { seconds: 0 }))) !== null)
          notify('The tube is no longer paused.')
      },
    },
  })
  const kickCount = numberField('Maximum number of jobs', 100, {
    min: 1,
    hint: 'Buried jobs become ready. If none is buried, delayed jobs do.',
  })
  const kick = form('Kick jobs', 'Kick', [kickCount], async () => {
    const answer = await app.act(() => act(`${tubePath(name)}/kick`, { count: Number(kickCount.input.value) }))
    if (answer !== null) notify(`Kicked ${format.counted(answer.kicked, 'job')}.`)
  })
  const flush = el('button', {
    type: 'button',
    class: 'danger',
    text: 'Delete unreserved jobs',
    on: {
      click: async () => {
        const consequence =
          'Ready, delayed, buried and held jobs are deleted. Reserved jobs stay with their clients. This cannot be undone.'
        if (!(await ask(`Delete the unreserved jobs of the tube ${name}?`, consequence, 'Delete unreserved jobs'))) return
        const answer = await app.act(() => act(`${tubePath(name)}/flush`, {}))
        if (answer !== null) notify(`Deleted ${format.counted(answer.flushed, 'job')}.`)
      },
    },
  })
  const move = el('button', { type: 'button', text: 'Move jobs', on: { click: () => moveJobs(app, name, latest) } })
  const put = el('a', {
    class: 'button',
    href: `#/put?tube=${encodeURIComponent(name)}`,
    text: 'Put a job into this tube',
  })
  const node = card(
    'Actions',
    controls.note,
    pauseState,
    controls.group(pause.node, resume, kick.node, el('div', { class: 'buttons' }, move, flush)),
    el('p', {}, put),
  )
  const set = (tube) => {
    latest = tube
    const isPaused = tube.paused_seconds > 0
    setText(
      pauseState,
      isPaused
        ? `Paused: ${format.seconds(tube.paused_seconds)} left. Clients reserve no jobs from this tube.`
        : 'Not paused.',
    )
    show(resume, isPaused, pause.send)
  }
  return { node, set }
}

/** Shows the next job of a state on request, since each look is a command of the server. `again` looks again, after an action. */
function nextCard(app, name) {
  const title = (state) => (state === 'reserved' ? 'Longest reserved' : `Next ${state}`)
  const empty = el('p', { class: 'hint', text: 'Choose a state to see its next job.' })
  const heading = el('p', { class: 'next-job' })
  const details = jobFacts()
  const body = new BodyView(app)
  const found = el('div', { hidden: true }, heading, details.node, body.node)
  const reading = new Reading(app)
  let shown = null
  const look = async (state) => {
    const read = async () => {
      const next = await find(`${tubePath(name)}/next/${state}`)
      if (next !== null) await body.load(next.id)
      return next
    }
    const job = await reading.load(`The ${title(state).toLowerCase()} job is not loaded.`, read, () => look(state))
    if (job === undefined) return
    shown = state
    show(found, job !== null)
    show(empty, job === null)
    if (job === null) return setText(empty, `There is no ${state} job in this tube.`)
    heading.replaceChildren(`${title(state)} job: `, jobLink(job.id))
    details.set(job)
  }
  const buttons = ['ready', 'delayed', 'buried', 'reserved'].map((state) =>
    el('button', { type: 'button', text: title(state), on: { click: () => look(state) } }),
  )
  const node = card(
    'Next jobs',
    el('div', { class: 'buttons' }, ...buttons),
    el('div', { role: 'status', class: 'next' }, empty),
    reading.node,
    found,
  )
  const again = async () => {
    if (shown !== null) await look(shown)
  }
  return { node, again }
}

class Tube {
  #app
  #name
  #history
  #paused = el('span', { class: 'badge', text: 'paused', hidden: true })
  #tiles = stateTiles()
  #charts
  #times = timesCard()
  #rules
  #counters
  #controls = new Controls()
  #actions
  #next
  #jobs
  #heading
  #found
  #missing

  constructor(app, name, query) {
    this.#app = app
    this.#name = name
    this.title = `Tube ${name}`
    this.interval = INTERVAL_MS
    this.#history = historyOf(name)
    const chart = (label, lines, shown) =>
      new Chart({ label, history: this.#history, lines, format: shown, axisFormat: format.short })
    this.#charts = [chart('Jobs by state', STATES, format.count), chart('Throughput, per second', RATES, format.rate)]
    this.#counters = facts({
      urgent: 'Urgent jobs',
      waiting: 'Waiting clients',
      watching: 'Clients that watch it',
      using: 'Clients that use it',
      oldest: 'Oldest ready job',
      puts: 'Puts',
      deletes: 'Deletes',
      timeouts: 'Timeouts',
      buries: 'Buries',
      pauses: 'Pause commands',
    })
    this.#next = nextCard(app, name)
    this.#actions = actionsCard({ ...app, act: (...action) => this.#act(...action) }, name, this.#controls)
    this.#rules = rulesCard(app, name, this.#controls)
    this.#jobs = jobsCard(app, name, query, () => this.#toTop())
    this.#found = el(
      'div',
      {},
      this.#tiles.node,
      el('div', { class: 'charts' }, ...this.#charts.map((one) => el('div', { class: 'card' }, one.node))),
      el(
        'div',
        { class: 'cards' },
        this.#actions.node,
        this.#times.node,
        card('Counters', this.#counters.node),
      ),
      this.#rules.node,
      this.#next.node,
      this.#jobs.node,
    )
    this.#missing = el(
      'div',
      { class: 'empty-state', hidden: true },
      el('p', {
        text: 'There is no such tube now. A tube exists while it has a job, or a client that uses or watches it.',
      }),
      el(
        'div',
        { class: 'buttons' },
        checkAgain(app.poller),
        el('a', { class: 'button', href: `#/put?tube=${encodeURIComponent(name)}`, text: 'Put a job into it' }),
      ),
    )
    const shownName = el('span', { class: 'tube-name', text: name })
    this.#heading = el('h1', { tabindex: '-1' }, 'Tube ', shownName, ' ', this.#paused)
    this.node = el(
      'div',
      {},
      el('p', { class: 'crumbs' }, el('a', { href: '#/tubes', text: 'Tubes' })),
      this.#heading,
      this.#missing,
      this.#found,
    )
  }

  serverChanged(server) {
    this.#controls.update(server)
  }

  /** Carries out an action, and shows again what was asked for before it. */
  async #act(...action) {
    const result = await this.#app.act(...action)
    if (result !== null) {
      await this.#next.again()
      await this.#jobs.again()
    }
    return result
  }

  #toTop() {
    this.#heading.focus({ preventScroll: true })
    window.scrollTo(0, 0)
  }

  async refresh(signal) {
    const tube = await find(tubePath(this.#name), signal)
    this.interval = tube === null ? NEVER : INTERVAL_MS
    show(this.#missing, tube === null)
    show(this.#found, tube !== null)
    show(this.#paused, tube !== null && tube.paused_seconds > 0)
    if (tube === null) return
    const { pid, id } = this.#app.server
    this.#history.add(tube, `${pid} ${id}`)
    this.#tiles.set(tube)
    for (const chart of this.#charts) chart.update()
    this.#times.set(tube.percentiles)
    this.#rules.set(tube)
    this.#actions.set(tube)
    this.#counters.set({
      urgent: format.count(tube.urgent),
      waiting: format.count(tube.waiting),
      watching: format.count(tube.watching),
      using: format.count(tube.using),
      oldest: tube.oldest_ready_seconds === null ? 'none' : format.seconds(tube.oldest_ready_seconds),
      puts: format.count(tube.puts),
      deletes: format.count(tube.deletes),
      timeouts: format.count(tube.timeouts),
      buries: format.count(tube.buries),
      pauses: format.count(tube.pauses),
    })
    await this.#jobs.restore(signal)
  }

  close() {
    for (const chart of this.#charts) chart.close()
  }
}

export const tubePage = (app, name, query) => new Tube(app, name, query)
