// The jobs of a tube in one state, page by page.

import { find } from './api.js'
import * as format from './format.js'
import { card, el, setAttribute, setText, show } from './dom.js'
import { jobLink, TIME_LEFT } from './job.js'
import { tubePath } from './tubes.js'

const PAGE_JOBS = 50

const STATES = ['ready', 'reserved', 'delayed', 'buried', 'held']

/** Lists jobs on request, since a long list makes the server visit all of its jobs. */
export function jobsCard(app, name, toTop) {
  const summary = el('p', { class: 'hint', text: 'Choose a state to list its jobs.' })
  const time = el('th', { scope: 'col' })
  const heads = ['Job', 'Priority', 'Age', 'Size'].map((text) => el('th', { scope: 'col', text }))
  const rows = el('tbody')
  const table = el('table', { class: 'times' }, el('thead', {}, el('tr', {}, ...heads, time)), rows)
  const scroller = el('div', { class: 'job-rows', tabindex: '0', role: 'group', 'aria-label': 'Jobs', hidden: true }, table)
  let shown = { state: 'ready', last: 0 }

  const row = (job, hasTime) => {
    const texts = [format.count(job.priority), format.seconds(job.age_seconds), format.bytes(job.body_bytes)]
    if (hasTime) texts.push(format.seconds(job.time_left_seconds))
    const head = el('th', { scope: 'row' }, jobLink(job.id))
    return el('tr', {}, head, ...texts.map((text) => el('td', { text })))
  }
  const list = async (state, after) => {
    for (const [one, choice] of choices) setAttribute(choice, 'aria-pressed', String(one === state))
    const path = `${tubePath(name)}/jobs?state=${state}&after=${after}&limit=${PAGE_JOBS}`
    const page = await app.act(() => find(path))
    const jobs = page?.jobs ?? []
    show(scroller, jobs.length > 0)
    show(next, jobs.length === PAGE_JOBS)
    show(first, after !== 0)
    show(top, true)
    if (jobs.length === 0) {
      const none = after === 0 ? `There is no ${state} job in this tube.` : `There are no more ${state} jobs.`
      return setText(summary, none)
    }
    const last = jobs[jobs.length - 1].id
    shown = { state, last }
    setText(summary, `${format.counted(jobs.length, `${state} job`)}, from ${jobs[0].id} to ${last}.`)
    const hasTime = state in TIME_LEFT
    setText(time, TIME_LEFT[state] ?? '')
    show(time, hasTime)
    rows.replaceChildren(...jobs.map((job) => row(job, hasTime)))
  }
  const button = (text, act) => el('button', { type: 'button', text, on: { click: act } })
  const next = button('Next page', () => list(shown.state, shown.last))
  const first = button('First page', () => list(shown.state, 0))
  const top = button('Top of the tube', toTop)
  for (const one of [next, first, top]) show(one, false)
  const choices = new Map(STATES.map((state) => [state, button(`List ${state}`, () => list(state, 0))]))
  for (const choice of choices.values()) setAttribute(choice, 'aria-pressed', 'false')
  return card(
    'Jobs',
    el('div', { class: 'buttons' }, ...choices.values()),
    el('div', { role: 'status', class: 'listed' }, summary),
    scroller,
    el('div', { class: 'buttons' }, next, first, top),
  )
}
