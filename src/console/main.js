// The start: routes, the page that is shown, and the repeated reading of the server.

import { attempt, closeErrors, closeQuestions, NAME_PATTERN, NAME_RULE, notify } from './actions.js'
import { problemPage, tokenPage } from './access.js'
import { read, token } from './api.js'
import { el, setText } from './dom.js'
import { findPage } from './find.js'
import { visible } from './format.js'
import { groupPage } from './group.js'
import { History } from './history.js'
import { jobPage } from './job.js'
import { overviewPage } from './overview.js'
import { NEVER, Poller } from './poll.js'
import { putPage } from './put.js'
import { schedulePage } from './schedule.js'
import { schedulesPage } from './schedules.js'
import { announce, isStandby, showConnection, showPage, showServer } from './shell.js'
import { tubePage } from './tube.js'
import { tubesPage } from './tubes.js'

const INTERVAL_MS = 2000
const IS_NAME = new RegExp(`^(?=.{1,200}$)${NAME_PATTERN}$`)
const JOB_ID_MAX = 2n ** 64n - 1n
const PAGES = [
  { name: 'overview', path: /^$/, open: () => overviewPage(app) },
  { name: 'tubes', path: /^tubes$/, open: (_, query) => tubesPage(app, query) },
  { name: 'tubes', path: /^tubes\/([^/]+)$/, open: ([, name], query) => tubeOf(decodeURIComponent(name), query) },
  { name: 'jobs', path: /^(jobs|groups)$/, open: () => findPage() },
  { name: 'jobs', path: /^jobs\/([^/]+)$/, open: ([, id]) => jobOf(decodeURIComponent(id)) },
  { name: 'jobs', path: /^groups\/([^/]+)$/, open: ([, name]) => groupOf(decodeURIComponent(name)) },
  { name: 'schedules', path: /^schedules$/, open: (_, query) => schedulesPage(app, query) },
  { name: 'schedules', path: /^schedules\/([^/]+)$/, open: ([, name]) => scheduleOf(decodeURIComponent(name)) },
  { name: 'put', path: /^put$/, open: (_, query) => putPage(app, query) },
]

const content = document.getElementById('content')
const poller = new Poller(refresh, changed)
let page = null
let isOpened = false
// Whether the page has shown what the server says since it was opened.
let isLoaded = false
const notLoaded = el('p', { class: 'empty not-loaded' })
// A page that asks for access stands in place of the page.
let isLocked = false

/** What pages share. */
const app = {
  /** The latest answer about the server. */
  server: null,
  history: new History(['ready', 'reserved', 'delayed', 'buried', 'held'], ['puts', 'reserves', 'deletes', 'timeouts']),
  poller,
  /** Asks for another token. */
  forgetToken() {
    token.forget()
    route()
  },
  /** Carries out an action with no reading beside it. Returns its result, or `null` after showing its error: see `attempt`. */
  act: (action, beside = null) => attempt(() => poller.act(action), beside),
}

/** A page that nothing is read for, since its address cannot exist. */
function missing(title, text, href, label) {
  return { ...problemPage(title, text, el('a', { class: 'button', href, text: label })), interval: NEVER }
}

function tubeOf(name, query) {
  if (IS_NAME.test(name)) return tubePage(app, name, query)
  const text = `No tube can have the name “${visible(name)}”. A tube name has ${NAME_RULE}.`
  return missing('There is no such tube', text, '#/tubes', 'Go to the tubes')
}

function groupOf(name) {
  if (IS_NAME.test(name)) return groupPage(app, name)
  const text = `No group can have the name “${visible(name)}”. A group name has ${NAME_RULE}.`
  return missing('There is no such group', text, '#/jobs', 'Find a group')
}

function scheduleOf(name) {
  if (IS_NAME.test(name)) return schedulePage(app, name)
  const text = `No schedule can have the name “${visible(name)}”. Its name has ${NAME_RULE}.`
  return missing('There is no such schedule', text, '#/schedules', 'Go to the schedules')
}

function jobOf(id) {
  if (/^[0-9]{1,20}$/.test(id) && BigInt(id) <= JOB_ID_MAX) return jobPage(app, id)
  const text = `No job can have the id “${visible(id)}”. A job id is a whole number up to ${JOB_ID_MAX}.`
  return missing('There is no such job', text, '#/jobs', 'Find a job')
}

function opened() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?', 2)
  for (const { name, path: pattern, open } of PAGES) {
    const match = pattern.exec(path)
    if (match === null) continue
    try {
      return { name, one: open(match, new URLSearchParams(query ?? '')) }
    } catch (error) {
      // A "%" without two digits behind it cannot be decoded.
      if (!(error instanceof URIError)) throw error
    }
  }
  return { name: null, one: missing('There is no such page', 'Check the address for typing errors.', '#/', 'Go to the overview') }
}

function showOne(name, one) {
  page?.close?.()
  // A question about one page must not be answered on another.
  closeQuestions()
  page = one
  isLoaded = false
  content.replaceChildren(one.node)
  showPage(name, one.title)
  poller.interval = one.interval ?? INTERVAL_MS
  if (app.server !== null) one.serverChanged?.(app.server)
}

function route() {
  const { name, one } = opened()
  isLocked = false
  closeErrors()
  showOne(name, one)
  window.scrollTo(0, 0)
  // Not at the first page: a reader begins at the top.
  if (one.focus !== undefined) one.focus.focus()
  else if (isOpened) content.focus({ preventScroll: true })
  isOpened = true
  poller.start()
}

async function refresh(signal) {
  const server = await readServer(signal)
  if (server === null) return
  const last = app.server
  app.server = server
  const isRestarted =
    last !== null && (last.pid !== server.pid || last.id !== server.id || last.uptime_seconds > server.uptime_seconds)
  if (isRestarted) notify('The server has restarted.')
  app.history.add({ ...server.jobs, ...server.totals }, `${server.pid} ${server.id}`)
  showServer(server)
  const shown = page
  shown.serverChanged?.(server)
  if (isStandby(server)) {
    // What the page has shown as that of a leader is old.
    if (isLoaded && shown.refresh !== undefined) route()
    else explainEmpty('this server is a standby')
    return
  }
  await shown.refresh?.(signal)
  if (page !== shown) return
  poller.interval = page.interval ?? INTERVAL_MS
  isLoaded = true
  notLoaded.remove()
}

// Returns `null` if the user may not read the server, and the page works without it.
async function readServer(signal) {
  try {
    return await read('server', signal)
  } catch (error) {
    if (!error.lacksRight || page.withoutServer === undefined) throw error
    app.server = null
    page.withoutServer(error.message)
    poller.interval = NEVER
    return null
  }
}

// Says why a page is empty. One that reads only the server itself is filled from the latest answer.
function explainEmpty(why) {
  const needsAnswer = page.refresh !== undefined || (page.serverChanged !== undefined && app.server === null)
  if (isLoaded || !needsAnswer) return
  const heading = page.node.querySelector('h1')
  const head = heading.closest('.head') ?? heading
  setText(notLoaded, `Not loaded: ${why}.`)
  head.after(notLoaded)
}

function changed(state, detail = {}) {
  showConnection(state, detail, () => poller.now())
  if (state === 'gone') explainEmpty('the server does not reply')
  if (state !== 'refused' || isLocked) return
  const { error } = detail
  // A proxy may refuse a token that it cannot read. The server always can answer this request.
  const isTokenRefused = error.status === 400 && error.path === 'server' && token.get() !== null
  if (error.status === 401 || isTokenRefused) lock(tokenPage(route))
  else if (error.status === 403)
    lock(
      problemPage(
        'The server refuses access',
        error.message,
        el(
          'div',
          { class: 'buttons' },
          el('button', { type: 'button', text: 'Try again', on: { click: () => route() } }),
          el('button', { type: 'button', text: 'Use another token', on: { click: () => enterToken() } }),
          error.lacksRight ? el('a', { class: 'button', href: '#/put', text: 'Put a job' }) : null,
        ),
      ),
    )
  else explainEmpty('the server has answered with an error')
}

function enterToken() {
  token.forget()
  lock(tokenPage(route))
}

function lock(one) {
  isLocked = true
  poller.stop()
  showOne(null, one)
  announce(one.title)
  one.focus?.focus()
}

document.getElementById('skip').addEventListener('click', (event) => {
  // The hash belongs to the pages.
  event.preventDefault()
  content.focus()
})

document.addEventListener('keydown', (event) => {
  const isTyping = event.target.closest?.('input, textarea, select, dialog') !== null
  if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey) return
  event.preventDefault()
  if (isLocked) return
  if (page.focusFilter === undefined) {
    // A new hash alone would open the page later.
    history.pushState(null, '', '#/tubes')
    route()
  }
  page.focusFilter()
})

window.addEventListener('hashchange', route)
route()
