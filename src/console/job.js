// A job: its state, its times, its body, and what can be done with it.

import { act, find, remove } from './api.js'
import { ask, checkAgain, form, notify, tubeField } from './actions.js'
import { BodyView } from './body.js'
import { findJobForm } from './find.js'
import * as format from './format.js'
import { groupLink } from './group.js'
import { card, disable, el, facts, numberField, setText, show } from './dom.js'
import { NEVER } from './poll.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const URGENT_BELOW = 1024
const INTERVAL_MS = 2000

/** What the time left of a job means, in the states that have one. */
export const TIME_LEFT = { reserved: 'TTR ends in', delayed: 'Ready in' }

/** The link to the page of a job. */
export const jobLink = (id) => el('a', { href: `#/jobs/${id}`, text: `job ${id}` })

/** The values of a job, as a list. */
export function jobFacts() {
  const { node, set } = facts(
    {
      state: 'State',
      priority: 'Priority',
      age: 'Age',
      ...TIME_LEFT,
      delay: 'Delay',
      ttr: 'Time to run (TTR)',
      size: 'Body',
      reserves: 'Reserves',
      timeouts: 'Timeouts',
      releases: 'Releases',
      buries: 'Buries',
      kicks: 'Kicks',
      losses: 'Lost connections',
      attempts: 'Failed attempts',
      notes: 'Why attempts failed',
      idp: 'Idempotency key',
      con: 'Concurrency key',
      grp: 'Group',
      waits: 'Waits for group',
      aft: 'After group',
    },
    true,
  )
  return {
    node,
    set(job) {
      set({
        state: job.state,
        priority: `${format.count(job.priority)}${job.priority < URGENT_BELOW ? ' (urgent)' : ''}`,
        age: format.seconds(job.age_seconds),
        // Other states have no such row.
        [job.state]: format.seconds(job.time_left_seconds),
        delay: format.seconds(job.delay_seconds),
        ttr: format.seconds(job.ttr_seconds),
        size: format.bytes(job.body_bytes),
        ...Object.fromEntries(
          ['reserves', 'timeouts', 'releases', 'buries', 'kicks', 'losses', 'attempts'].map((key) => [
            key,
            format.count(job[key]),
          ]),
        ),
        notes: job.notes?.map(({ text, age_seconds }) =>
          el('p', { class: 'note', text: `${format.seconds(age_seconds)} ago: ${text}` }),
        ),
        ...tagFacts(job),
      })
    },
  }
}

/** The tags of a job. One that has waited for a group does so no longer. */
function tagFacts({ tags = {}, waits_for, passed_over }) {
  const group = (name) => (name === undefined ? null : [groupLink(name)])
  const idp = tags.idp?.split(':')
  const kept = idp?.[1] === undefined ? '' : `, kept for ${format.exactSeconds(Number(idp[1]))} after the job is deleted`
  const con = tags.con?.split(':')
  const atLimit = passed_over ? '. That many are reserved, so reserves pass this one over' : ''
  return {
    idp: idp === undefined ? null : `${idp[0]}${kept}`,
    con: con === undefined ? null : `${con[0]}, at most ${format.counted(Number(con[1] ?? 1), 'job')} reserved at a time${atLimit}`,
    grp: group(tags.grp),
    waits: group(waits_for),
    aft: waits_for === undefined ? group(tags.aft) : null,
  }
}

function actionsCard(app, id, controls) {
  const path = `jobs/${id}`
  const run = async (action, text, beside = null) => {
    if ((await app.act(action, beside)) !== null) notify(text)
  }
  const kick = el('button', {
    type: 'button',
    text: 'Kick',
    on: { click: () => run(() => act(`${path}/kick`), `Job ${id} is ready.`) },
  })
  const priorityOf = (label) => numberField(label, 0)
  const releaseAt = priorityOf('Priority')
  const delay = numberField('Delay in seconds', 0)
  const release = form('Release the job', 'Release', [releaseAt, delay], () =>
    run(
      () => act(`${path}/release`, { priority: Number(releaseAt.input.value), delay: Number(delay.input.value) }),
      `Job ${id} is released.`,
    ),
  )
  const buryAt = priorityOf('Priority')
  const bury = form('Bury the job', 'Bury', [buryAt], () =>
    run(() => act(`${path}/bury`, { priority: Number(buryAt.input.value) }), `Job ${id} is buried.`),
  )
  const target = tubeField('To tube')
  const moves = form('Move the job', 'Move', [target], () =>
    run(
      () => act(`${path}/move`, { to: target.input.value }),
      `Job ${id} is in the tube ${target.input.value}.`,
      target,
    ),
  )
  const deletes = el('button', {
    type: 'button',
    class: 'danger',
    text: 'Delete',
    on: {
      click: async () => {
        const yes = await ask(`Delete job ${id}?`, 'This cannot be undone.', 'Delete')
        if (yes) await run(() => remove(path), `Job ${id} is deleted.`)
      },
    },
  })
  const reserved = el('p', { class: 'hint' })
  const held = el('p', {
    class: 'hint',
    text: 'The job waits for a group. A kick makes it ready. A held job can be moved or deleted, but not released or buried.',
  })
  const kicking = controls.group(
    el('h3', { text: 'Kick' }),
    el('p', { class: 'hint', text: 'Makes a buried, delayed or held job ready.' }),
    kick,
  )
  const reserving = controls.group(
    el('h3', { text: 'Release' }),
    el('p', { class: 'hint', text: 'Makes the job ready with this priority. With a delay, it becomes ready after that time.' }),
    release.node,
    el('h3', { text: 'Bury' }),
    el('p', { class: 'hint', text: 'Gives the job this priority. Workers do not get it until it is kicked.' }),
    bury.node,
  )
  const rest = controls.group(
    el('h3', { text: 'Move' }),
    el('p', { class: 'hint', text: 'The job keeps its state, its priority and its counters.' }),
    moves.node,
    el('h3', { text: 'Delete' }),
    deletes,
  )
  let hasPriority = false
  const set = (job) => {
    // What is typed is not overwritten.
    if (!hasPriority) releaseAt.input.value = buryAt.input.value = String(job.priority)
    hasPriority = true
    const isReserved = job.state === 'reserved'
    const isHeld = job.state === 'held'
    const left = format.seconds(job.time_left_seconds)
    setText(
      reserved,
      `A client has reserved the job. Its TTR ends in ${left}. Only that client can release, bury, move or delete it.`,
    )
    show(reserved, isReserved)
    show(held, isHeld)
    if (isReserved || isHeld) disable(reserving, true)
    if (isReserved) disable(rest, true)
    disable(kick, job.state === 'ready' || isReserved)
  }
  return { node: card('Actions', controls.note, reserved, held, kicking, reserving, rest), set }
}

class Job {
  #app
  #id
  #controls = new Controls()
  #heading = el('span', { class: 'state' })
  #tube = el('p', { class: 'crumbs' })
  #tubeName = null
  #facts = jobFacts()
  #body
  #actions
  #found
  #missing
  #missingText = el('p')
  #hasBody = false
  #wasFound = false

  constructor(app, id) {
    this.#app = app
    this.#id = id
    this.title = `Job ${id}`
    this.interval = INTERVAL_MS
    this.#body = new BodyView(app)
    this.#actions = actionsCard(app, id, this.#controls)
    this.#found = el(
      'div',
      { hidden: true },
      el(
        'div',
        { class: 'columns' },
        el('div', {}, card('Values', this.#facts.node), card('Body', this.#body.node)),
        this.#actions.node,
      ),
    )
    this.#missing = el(
      'div',
      { class: 'empty-state', hidden: true },
      this.#missingText,
      checkAgain(app.poller),
      findJobForm().node,
    )
    this.node = el('div', {}, this.#tube, el('h1', {}, `Job ${id} `, this.#heading), this.#missing, this.#found)
  }

  serverChanged(server) {
    this.#controls.update(server)
  }

  async refresh(signal) {
    const job = await find(`jobs/${this.#id}`, signal)
    this.interval = job === null ? NEVER : INTERVAL_MS
    show(this.#missing, job === null)
    show(this.#found, job !== null)
    show(this.#heading, job !== null)
    if (job === null) {
      setText(
        this.#missingText,
        this.#wasFound
          ? 'The job has been deleted.'
          : 'There is no job with this id. It has been deleted, or no job has had this id yet.',
      )
      return
    }
    this.#wasFound = true
    setText(this.#heading, job.state)
    this.#heading.className = `state ${job.state}`
    if (this.#tubeName !== job.tube)
      this.#tube.replaceChildren(el('a', { href: '#/tubes', text: 'Tubes' }), ' / ', tubeLink(job.tube))
    this.#tubeName = job.tube
    this.#facts.set(job)
    this.#actions.set(job)
    // A body never changes.
    if (!this.#hasBody) this.#hasBody = await this.#body.loadBeside(this.#id, signal)
  }
}

export const jobPage = (app, id) => new Job(app, id)
