// A job: its state, its times, its body, and what can be done with it.

import { act, find, remove } from './api.js'
import { ask, form, lookAgain, notify, tubeField } from './actions.js'
import { BodyView } from './body.js'
import * as format from './format.js'
import { groupLink } from './group.js'
import { card, el, facts, field, numberField, setText, show } from './dom.js'
import { NEVER } from './poll.js'
import { Controls } from './shell.js'
import { tubeLink } from './tubes.js'

const URGENT_BELOW = 1024
const INTERVAL_MS = 2000

/** The link to the page of a job. */
export const jobLink = (id) => el('a', { href: `#/jobs/${id}`, text: `job ${id}` })

/** The values of a job, as a list. */
export function jobFacts() {
  const { node, set } = facts(
    {
      state: 'State',
      priority: 'Priority',
      age: 'Age',
      left: 'Time left',
      delay: 'Delay',
      ttr: 'Time to run (TTR)',
      size: 'Body',
      reserves: 'Reserves',
      timeouts: 'Timeouts',
      releases: 'Releases',
      buries: 'Buries',
      kicks: 'Kicks',
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
      const hasTimeLeft = job.state === 'reserved' || job.state === 'delayed'
      set({
        state: job.state,
        priority: `${format.count(job.priority)}${job.priority < URGENT_BELOW ? ' (urgent)' : ''}`,
        age: format.seconds(job.age_seconds),
        left: hasTimeLeft ? format.seconds(job.time_left_seconds) : null,
        delay: format.seconds(job.delay_seconds),
        ttr: format.seconds(job.ttr_seconds),
        size: format.bytes(job.body_bytes),
        ...Object.fromEntries(
          ['reserves', 'timeouts', 'releases', 'buries', 'kicks'].map((key) => [key, format.count(job[key])]),
        ),
        ...tagFacts(job),
      })
    },
  }
}

/** The tags of a job. One that has waited for a group does so no longer. */
function tagFacts({ tags = {}, waits_for, passed_over }) {
  const group = (name) => (name === undefined ? null : [groupLink(name)])
  const con = tags.con?.split(':')
  const atLimit = passed_over ? ': as many are reserved, so this one is passed over' : ''
  return {
    idp: tags.idp?.split(':')[0],
    con: con === undefined ? null : `${con[0]}, ${con[1] ?? 1} at a time${atLimit}`,
    grp: group(tags.grp),
    waits: group(waits_for),
    aft: waits_for === undefined ? group(tags.aft) : null,
  }
}

/** The form that leads to a job by its id. */
function findForm() {
  const id = field('Job id', {
    type: 'text',
    inputmode: 'numeric',
    pattern: '[0-9]{1,20}',
    required: true,
    autocomplete: 'off',
    title: 'A whole number',
  })
  const { node } = form('Find a job', 'Show', [id], () => {
    location.hash = `#/jobs/${id.input.value}`
  })
  return { node, input: id.input }
}

export function findJobPage() {
  const { node, input } = findForm()
  return {
    title: 'Job',
    node: el(
      'div',
      { class: 'narrow' },
      el('h1', { text: 'Job' }),
      el('p', { class: 'hint', text: 'A put returns the id of its job. The page of a tube shows its next jobs.' }),
      node,
    ),
    focus: input,
  }
}

function actionsCard(app, id, controls) {
  const path = `jobs/${id}`
  const run = async (action, text) => {
    if ((await app.act(action)) !== null) notify(text)
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
    run(() => act(`${path}/move`, { to: target.input.value }), `Job ${id} is in the tube ${target.input.value}.`),
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
  const reserved = el('p', {
    class: 'hint',
    text: 'A client has reserved the job. Only that client can release, bury or delete it.',
  })
  const held = el('p', {
    class: 'hint',
    text: 'The job waits for a group. A kick makes it ready. Until then it can be moved and deleted, but not released or buried.',
  })
  const kicking = controls.group(
    el('h3', { text: 'Kick' }),
    el('p', { class: 'hint', text: 'Makes a buried, delayed or held job ready.' }),
    kick,
  )
  const reserving = controls.group(
    el('h3', { text: 'Release' }),
    el('p', { class: 'hint', text: 'Gives the job a priority, and makes it ready, or delayed.' }),
    release.node,
    el('h3', { text: 'Bury' }),
    el('p', { class: 'hint', text: 'Puts the job aside until it is kicked.' }),
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
    show(reserved, isReserved)
    show(held, isHeld)
    if (isReserved || isHeld) reserving.disabled = true
    if (isReserved) rest.disabled = true
    kick.disabled = job.state === 'ready' || isReserved
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
        { class: 'job-columns' },
        el('div', {}, card('Values', this.#facts.node), card('Body', this.#body.node)),
        this.#actions.node,
      ),
    )
    this.#missing = el('div', { class: 'empty-state', hidden: true }, this.#missingText, lookAgain(app.poller), findForm().node)
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
          : 'There is no job with this id. It has been deleted, or it was never put.',
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
    if (!this.#hasBody) {
      await this.#body.load(this.#id, signal)
      this.#hasBody = true
    }
  }
}

export const jobPage = (app, id) => new Job(app, id)
