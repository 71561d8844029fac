// The jobs of a tube in one state, page by page.

import { find } from './api.js'
import { Reading } from './actions.js'
import * as format from './format.js'
import { card, el, setAttribute, setText, show } from './dom.js'
import { jobLink, TIME_LEFT } from './job.js'
import { tubePath } from './tubes.js'

const PAGE_JOBS = 50

const STATES = ['ready', 'reserved', 'delayed', 'buried', 'held']

/** The list that an address names, or `null`. */
function listOf(query) {
  const state = query.get('state')
  const after = Number(query.get('after') ?? 0)
  return STATES.includes(state) ? { state, after: Number.isSafeInteger(after) && after > 0 ? after : 0 } : null
}

/**
 * Lists jobs on request, since a long list makes the server visit all of its jobs. The address keeps the list, and `restore`
 * shows the one that it named at first. `again` lists again what is shown, after an action.
 */
export function jobsCard(app, name, query, toTop) {
  const summary = el('p', { class: 'hint', text: 'Choose a state to list its jobs.' })
  const time = el('th', { scope: 'col' })
  const heads = ['Job', 'Priority', 'Age', 'Size'].map((text) => el('th', { scope: 'col', text }))
  const rows = el('tbody')
  const table = el('table', { class: 'times' }, el('thead', {}, el('tr', {}, ...heads, time)), rows)
  const scroller = el('div', { class: 'job-rows', tabindex: '0', role: 'group', 'aria-label': 'Jobs', hidden: true }, table)
  const reading = new Reading(app)
  let wanted = listOf(query)
  let shown = null

  const row = (job, hasTime) => {
    const texts = [format.count(job.priority), format.seconds(job.age_seconds), format.bytes(job.body_bytes)]
    if (hasTime) texts.push(format.seconds(job.time_left_seconds))
    const head = el('th', { scope: 'row' }, jobLink(job.id))
    return el('tr', {}, head, ...texts.map((text) => el('td', { text })))
  }
  const keepInAddress = (state, after) => {
    const kept = after === 0 ? '' : `&after=${after}`
    history.replaceState(history.state, '', `#/tubes/${encodeURIComponent(name)}?state=${state}${kept}`)
  }
  const list = async (state, after, signal = null) => {
    const path = `${tubePath(name)}/jobs?state=${state}&after=${after}&limit=${PAGE_JOBS}`
    const read = () => find(path, signal)
    const page = await reading.load(`The list of ${state} jobs is not loaded.`, read, () => listed(state, after), signal)
    // Another page may be open by now.
    if (page === undefined || !node.isConnected) return
    const jobs = page?.jobs ?? []
    keepInAddress(state, after)
    shown = { state, after, last: jobs.at(-1)?.id ?? after }
    for (const [one, choice] of choices) setAttribute(choice, 'aria-pressed', String(one === state))
    show(top, true)
    if (after !== 0) show(first, true)
    show(next, jobs.length === PAGE_JOBS, first)
    show(first, after !== 0, next)
    show(scroller, jobs.length > 0)
    if (jobs.length === 0) {
      const none = after === 0 ? `There is no ${state} job in this tube.` : `There are no more ${state} jobs.`
      return setText(summary, none)
    }
    setText(summary, `${format.counted(jobs.length, `${state} job`)}, from ${jobs[0].id} to ${shown.last}.`)
    const hasTime = state in TIME_LEFT
    setText(time, TIME_LEFT[state] ?? '')
    show(time, hasTime)
    rows.replaceChildren(...jobs.map((job) => row(job, hasTime)))
  }
  const listed = (state, after) => {
    wanted = null
    return list(state, after)
  }
  const restore = async (signal) => {
    if (wanted === null) return
    const { state, after } = wanted
    await list(state, after, signal)
    wanted = null
    node.scrollIntoView()
    choices.get(state).focus({ preventScroll: true })
  }
  const again = async () => {
    if (shown !== null) await list(shown.state, shown.after)
  }
  const button = (text, act) => el('button', { type: 'button', text, on: { click: act } })
  const next = button('Next page', () => listed(shown.state, shown.last))
  const first = button('First page', () => listed(shown.state, 0))
  const top = button('Top of the tube', toTop)
  for (const one of [next, first, top]) show(one, false)
  const choices = new Map(STATES.map((state) => [state, button(`List ${state}`, () => listed(state, 0))]))
  for (const choice of choices.values()) setAttribute(choice, 'aria-pressed', 'false')
  const node = card(
    'Jobs',
    el('div', { class: 'buttons' }, ...choices.values()),
    el('div', { role: 'status', class: 'listed' }, summary),
    reading.node,
    scroller,
    el('div', { class: 'buttons' }, next, first, top),
  )
  return { node, restore, again }
}
