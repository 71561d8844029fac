// The jobs of a tube in one state, page by page.

import { find } from './api.js'
import * as format from './format.js'
import { card, el, setText, show } from './dom.js'
import { jobLink, TIME_LEFT } from './job.js'
import { tubePath } from './tubes.js'

const PAGE_JOBS = 50

const STATES = ['ready', 'reserved', 'delayed', 'buried', 'held']

/** Lists jobs on request, since a long list makes the server visit all of its jobs. */
export function jobsCard(app, name) {
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
    const path = `${tubePath(name)}/jobs?state=${state}&after=${after}&limit=${PAGE_JOBS}`
    const page = await app.act(() => find(path))
    const jobs = page?.jobs ?? []
    show(scroller, jobs.length > 0)
    show(next, jobs.length === PAGE_JOBS)
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
  show(next, false)
  const choices = STATES.map((state) => button(`List ${state}`, () => list(state, 0)))
  return card(
    'Jobs',
    el('div', { class: 'buttons' }, ...choices),
    el('div', { role: 'status', class: 'listed' }, summary),
    scroller,
    next,
  )
}
