// All schedules, page by page, and the form that adds one.

import { find, putSchedule, read, segment } from './api.js'
import { ask, form, nameField, notify, tubeField } from './actions.js'
import * as format from './format.js'
import { card, el, field, numberField, setAttribute, setText, show } from './dom.js'
import { Controls } from './shell.js'

const PAGE_SCHEDULES = 50
const HEADS = ['Schedule', 'Tube', 'When', 'Next run', 'Last run', 'Its job']

/** The address of the page of a schedule. */
export const scheduleAddress = (name) => `#/schedules/${encodeURIComponent(name)}`

/** The path of a schedule in the API. */
export const schedulePath = (name) => `schedules/${segment(name)}`

/** A time of the API: "2026-11-30 02:00:00 UTC". */
export const moment = (at) => at.replace('T', ' ').replace('Z', ' UTC')

// Rows stay while the list is read again, so that a link keeps the focus.
function createRow() {
  const name = el('a', { class: 'tube-name' })
  const tube = el('a', { class: 'tube-name' })
  const job = el('a')
  const [when, next, last] = ['td', 'td', 'td'].map((tag) => el(tag))
  const head = el('th', { scope: 'row' }, name)
  const node = el('tr', {}, head, el('td', {}, tube), when, next, last, el('td', {}, job))
  const set = (one) => {
    setText(name, one.name)
    setAttribute(name, 'href', scheduleAddress(one.name))
    setText(tube, one.tube)
    setAttribute(tube, 'href', `#/tubes/${encodeURIComponent(one.tube)}`)
    setText(when, one.when)
    setText(next, one.next_run === undefined ? 'never' : `in ${format.seconds(one.next_run.left_seconds)}`)
    setAttribute(next, 'title', one.next_run === undefined ? null : moment(one.next_run.at))
    const { last_run: run } = one
    setText(last, run === undefined ? 'none' : `${format.seconds(run.age_seconds)} ago`)
    setAttribute(last, 'title', run === undefined ? null : moment(run.at))
    setText(job, run === undefined ? '' : `job ${run.job}`)
    setAttribute(job, 'href', run === undefined ? null : `#/jobs/${run.job}`)
  }
  return { node, set }
}

function choiceField(label, choices, hint) {
  const one = field(label, { tag: 'select' }, hint)
  for (const [value, text] of choices) one.input.append(el('option', { value, text }))
  return one
}

function addCard(app, controls) {
  const name = nameField('Name', { required: true }, 'A schedule of the same name is replaced.')
  const tube = tubeField('Tube', 'default')
  const when = field(
    'When',
    {
      type: 'text',
      required: true,
      maxlength: 512,
      autocomplete: 'off',
      spellcheck: 'false',
      placeholder: '0 3 * * 1-5 Europe/Berlin',
    },
    'A cron line of five fields with an optional time zone, or an interval: every:10m.',
  )
  const priority = numberField('Priority', 65536)
  const delay = numberField('Delay in seconds', 0)
  const ttr = numberField('TTR in seconds', 60)
  const missed = choiceField('Missed times', [
    ['once', 'Run the last one'],
    ['skip', 'Run the last one within a minute'],
    ['all', 'Run each'],
  ])
  const overlap = choiceField('While the last job exists', [
    ['yes', 'Run'],
    ['no', 'Leave the run out'],
  ])
  const body = field('Body', { tag: 'textarea', rows: 4, spellcheck: 'false' })
  const submit = async () => {
    const parameters = {
      tube: tube.input.value,
      when: when.input.value,
      priority: priority.input.value,
      delay: delay.input.value,
      ttr: ttr.input.value,
      missed: missed.input.value,
      overlap: overlap.input.value,
    }
    const [added, text] = [name.input.value, body.input.value]
    const consequence = 'Each run puts a job without a body.'
    if (text === '' && !(await ask(`Add the schedule ${added} with an empty body?`, consequence, 'Add'))) return
    // Without the right to see it, it counts as new.
    const before = await find(schedulePath(added)).catch(() => null)
    const done = await app.act(() => putSchedule(added, parameters, text))
    if (done !== null) notify(`The schedule ${added} is ${before === null ? 'added' : 'replaced'}.`)
  }
  const fields = [
    name,
    tube,
    when,
    { node: el('div', { class: 'numbers' }, priority.node, delay.node, ttr.node) },
    { node: el('div', { class: 'pairs' }, missed.node, overlap.node) },
    body,
  ]
  const { node } = form('Add a schedule', 'Add the schedule', fields, submit, { class: 'column-form' })
  return card('Add a schedule', controls.note, controls.group(node))
}

class Schedules {
  #after
  #next = null
  #rows = new Map()
  #controls = new Controls()
  #body = el('tbody')
  #scroller
  #empty = el('p', { class: 'empty', hidden: true })
  #nextButton
  #firstButton

  constructor(app, query) {
    this.#after = query.get('after')
    this.title = 'Schedules'
    const heads = HEADS.map((text) => el('th', { scope: 'col', text }))
    const table = el('table', { class: 'times schedules' }, el('thead', {}, el('tr', {}, ...heads)), this.#body)
    const properties = { class: 'job-rows', tabindex: '0', role: 'group', 'aria-label': 'Schedules', hidden: true }
    this.#scroller = el('div', properties, table)
    const button = (text, after) =>
      el('button', { type: 'button', text, hidden: true, on: { click: () => this.#turnTo(app, after()) } })
    this.#nextButton = button('Next page', () => this.#next)
    this.#firstButton = button('First page', () => null)
    this.node = el(
      'div',
      {},
      el('div', { class: 'head' }, el('h1', { text: 'Schedules' })),
      el(
        'div',
        { class: 'card' },
        this.#scroller,
        this.#empty,
        el('div', { class: 'buttons' }, this.#nextButton, this.#firstButton),
      ),
      addCard(app, this.#controls),
    )
  }

  serverChanged(server) {
    this.#controls.update(server)
  }

  async refresh(signal) {
    const query = new URLSearchParams({ limit: PAGE_SCHEDULES })
    const after = this.#after
    if (after !== null) query.set('after', after)
    const { schedules, next = null } = await read(`schedules?${query}`, signal)
    this.#next = next
    this.#fill(schedules)
    show(this.#scroller, schedules.length > 0)
    const isWhole = after === null && next === null
    setText(this.#empty, `${isWhole ? 'There is' : 'This page has'} no schedule that you may see.`)
    show(this.#empty, schedules.length === 0)
    show(this.#firstButton, after !== null)
    show(this.#nextButton, next !== null, this.#firstButton)
  }

  #fill(schedules) {
    const before = [...this.#rows.keys()]
    const rows = new Map(schedules.map((one) => [one.name, this.#rows.get(one.name) ?? createRow()]))
    for (const one of schedules) rows.get(one.name).set(one)
    this.#rows = rows
    const isSame = before.length === schedules.length && schedules.every(({ name }, index) => name === before[index])
    if (!isSame) this.#body.replaceChildren(...schedules.map(({ name }) => rows.get(name).node))
  }

  #turnTo(app, after) {
    this.#after = after
    // The way back from a schedule leads to the same page.
    const query = after === null ? '' : `?${new URLSearchParams({ after })}`
    history.replaceState(history.state, '', `#/schedules${query}`)
    app.poller.now()
  }
}

export const schedulesPage = (app, query) => new Schedules(app, query)
