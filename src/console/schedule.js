// A schedule: its times, its last job, its counters, and what can be done with it.

import { act, find, remove } from './api.js'
import { ask, checkAgain, notify } from './actions.js'
import * as format from './format.js'
import { card, el, facts, show } from './dom.js'
import { jobLink } from './job.js'
import { NEVER } from './poll.js'
import { moment, schedulePath } from './schedules.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const INTERVAL_MS = 2000
const MISSED = { once: 'the last one runs', skip: 'the last one runs within a minute', all: 'each runs' }

function scheduleFacts() {
  const { node, set } = facts(
    {
      tube: 'Tube',
      when: 'When',
      next: 'Next run',
      last: 'Last run',
      job: 'Its job',
      late: 'Late by',
      runs: 'Runs',
      skips: 'Left out: the last job existed',
      refusals: 'Refused: no job was put',
      gaps: 'Times missed by the server',
      priority: 'Priority',
      delay: 'Delay',
      ttr: 'Time to run (TTR)',
      size: 'Body',
      missed: 'Missed times',
      overlap: 'While the last job exists',
      origin: 'From',
      age: 'Age',
    },
    true,
  )
  return {
    node,
    set(one) {
      const { next_run: next, last_run: last } = one
      set({
        tube: [tubeLink(one.tube)],
        when: one.when,
        next: next === undefined ? 'never' : `${moment(next.at)}, in ${format.seconds(next.left_seconds)}`,
        last: last === undefined ? 'none' : `${moment(last.at)}, ${format.seconds(last.age_seconds)} ago`,
        job: last === undefined ? null : [jobLink(last.job)],
        late: last === undefined ? null : format.seconds(last.late_seconds),
        ...Object.fromEntries(['runs', 'skips', 'refusals', 'gaps'].map((key) => [key, format.count(one[key])])),
        priority: format.count(one.priority),
        delay: format.seconds(one.delay_seconds),
        ttr: one.ttr_seconds === 0 ? 'the default of the tube' : format.seconds(one.ttr_seconds),
        size: format.bytes(one.body_bytes),
        missed: MISSED[one.missed],
        overlap: one.overlap ? 'it runs' : 'the run is left out',
        origin: one.configured ? 'the configuration file' : 'a client',
        age: format.seconds(one.age_seconds),
      })
    },
  }
}

class Schedule {
  #name
  #controls = new Controls()
  #facts = scheduleFacts()
  #result = el('div', { class: 'result', role: 'status' })
  #found
  #missing

  constructor(app, name) {
    this.#name = name
    this.title = `Schedule ${name}`
    this.interval = INTERVAL_MS
    const path = schedulePath(name)
    const runNow = async () => {
      this.#result.replaceChildren()
      const done = await app.act(() => act(`${path}/run`))
      if (done !== null) this.#result.replaceChildren(el('p', {}, 'Put ', jobLink(done.id), '.'))
    }
    const deletes = async () => {
      const yes = await ask(`Delete the schedule ${name}?`, 'Its jobs stay. This cannot be undone.', 'Delete')
      if (yes && (await app.act(() => remove(path))) !== null) notify(`The schedule ${name} is deleted.`)
    }
    const actions = card(
      'Actions',
      this.#controls.note,
      this.#controls.group(
        el('h3', { text: 'Run' }),
        el('p', { class: 'hint', text: 'Puts a job now. The times of the schedule stay as they are.' }),
        el('button', { type: 'button', text: 'Run now', on: { click: runNow } }),
        this.#result,
        el('h3', { text: 'Delete' }),
        el('button', { type: 'button', class: 'danger', text: 'Delete', on: { click: deletes } }),
      ),
    )
    this.#found = el('div', { class: 'columns', hidden: true }, card('Values', this.#facts.node), actions)
    this.#missing = el(
      'div',
      { class: 'empty-state', hidden: true },
      el('p', { text: 'There is no schedule of this name.' }),
      checkAgain(app.poller),
    )
    this.node = el(
      'div',
      {},
      el('p', { class: 'crumbs' }, el('a', { href: '#/schedules', text: 'Schedules' })),
      el('h1', {}, 'Schedule ', el('span', { class: 'tube-name', text: name })),
      this.#missing,
      this.#found,
    )
  }

  serverChanged(server) {
    this.#controls.update(server)
  }

  async refresh(signal) {
    const schedule = await find(schedulePath(this.#name), signal)
    this.interval = schedule === null ? NEVER : INTERVAL_MS
    show(this.#missing, schedule === null)
    show(this.#found, schedule !== null)
    if (schedule !== null) this.#facts.set(schedule)
  }
}

export const schedulePage = (app, name) => new Schedule(app, name)
