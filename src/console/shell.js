// What surrounds every page: the state of the connection, banners, and what is announced to screen readers.

import { Garbled } from './api.js'
import { clock } from './format.js'
import { disable, discard, el, setAttribute, setText, show } from './dom.js'

const announcer = el('p', { class: 'visually-hidden', role: 'status' })
const banners = new Map()
let state = 'connecting'
let countdown = null

/** Marks the page in the navigation, and names it in the title of the window. */
export function showPage(name, title) {
  for (const link of document.querySelectorAll('nav a')) {
    setAttribute(link, 'aria-current', link.dataset.page === name ? 'page' : null)
  }
  document.title = `${title} – beanring`
}

/**
 * Shows a banner above the page, or takes it away if `text` is `null`. The key tells banners apart. Its action is a button with
 * `click`, or a link with `href`.
 */
export function banner(key, kind, text, { label, click, href } = {}) {
  const old = banners.get(key)
  if (old !== undefined && old.text === text && old.href === href) return
  banners.delete(key)
  if (text === null) {
    if (old !== undefined) discard(old.node)
    return
  }
  const node = el('div', { class: `banner ${kind}`, 'data-banner': key }, el('p', { text }))
  let action = null
  if (href !== undefined) action = el('a', { class: 'button', href, rel: 'noreferrer', text: label })
  else if (click !== undefined) action = el('button', { type: 'button', text: label, on: { click } })
  if (action !== null) node.append(action)
  document.getElementById('banners').append(node)
  if (old !== undefined) discard(old.node, action)
  banners.set(key, { node, text, href })
}

/** Tells users of screen readers what others see. */
export function announce(text) {
  if (!announcer.isConnected) document.body.append(announcer)
  setText(announcer, text)
}

const WORDS = { connecting: 'Connecting', live: 'Live', idle: 'Not updated', slow: 'Slow', gone: 'No reply', refused: 'Refused' }

/** Shows whether the server replies. Changes are announced once. */
export function showConnection(next, detail, retry) {
  const isBack = (next === 'live' || next === 'idle') && state === 'gone'
  const isLost = next === 'gone' && state !== 'gone'
  const node = document.getElementById('connection')
  setAttribute(node, 'data-state', next)
  setText(document.getElementById('connection-text'), WORDS[next])
  clearInterval(countdown)
  document.getElementById('content').classList.toggle('stale', next === 'gone')
  banner(
    'slow',
    'info',
    next === 'slow' ? 'The server is slow to reply. This page may be some seconds old.' : null,
  )
  banner(
    'refused',
    'error',
    next === 'refused' && ![401, 403].includes(detail.error.status) ? detail.error.message : null,
  )
  if (next !== 'gone') banner('gone', 'error', null)
  else showGone(detail, retry)
  if (isLost) announce('The server does not reply.')
  if (isBack) announce('The server replies again.')
  state = next
}

let lastAnswer = null

function showGone({ error, at }, retry) {
  const since = lastAnswer === null ? '' : ` This page shows its state at ${clock(lastAnswer)}.`
  const why = error instanceof Garbled ? error.message : `The server does not reply: ${error.message}`
  banner('gone', 'error', `${why}.${since}`, { label: 'Try now', click: retry })
  const update = () => {
    const left = Math.max(0, Math.ceil((at - Date.now()) / 1000))
    setText(document.getElementById('connection-text'), left === 0 ? 'Trying' : `No reply, next try in ${left} s`)
  }
  update()
  countdown = setInterval(update, 500)
}

/** Whether a server follows another one, which has the jobs. */
export const isStandby = (server) => server.replication?.role === 'standby'

// Where the jobs are that this server does not show.
function showStandby(server) {
  const key = 'standby'
  if (!isStandby(server)) return banner(key, 'info', null)
  const { leader } = server.replication
  const text = 'This server is a standby: the leader has the jobs.'
  // The API passes on no other URL.
  if (leader?.http) return banner(key, 'info', text, { href: leader.http, label: 'Open the console of the leader' })
  const host = leader?.address?.replace(/:\d+$/, '')
  const where = host === undefined ? '' : `, which is on ${host}`
  const how = 'Start each server with --advertise-http HOST:PORT to have a link to the leader here.'
  return banner(key, 'info', `${text} Open the console of the leader${where}. ${how}`)
}

const WARNINGS = new Set()

/** Shows what the server says about itself. */
export function showServer(server) {
  lastAnswer = new Date()
  showStandby(server)
  const isReadOnly = !server.may_write
  setAttribute(document.documentElement, 'data-read-only', isReadOnly ? '' : null)
  const now = new Map(server.warnings.map(({ kind, text }) => [kind, text]))
  if (server.draining && !now.has('draining')) now.set('draining', 'The server is draining: it refuses new jobs.')
  for (const kind of WARNINGS) {
    if (!now.has(kind)) {
      banner(`warning-${kind}`, 'warning', null)
      WARNINGS.delete(kind)
      announce(kind === 'draining' ? 'The server accepts new jobs again.' : '')
    }
  }
  for (const [kind, text] of now) {
    if (!WARNINGS.has(kind)) announce(text)
    WARNINGS.add(kind)
    banner(`warning-${kind}`, 'warning', text)
  }
}

/** Why this page may change nothing. */
export const READ_ONLY =
  'Read-only: the server accepts no actions from this browser. Start it with --http-token FILE, or with --http-allow-writes for browsers on its own machine. With --auth, the user of the token needs more rights.'

/**
 * The controls of a page that change something. They are disabled while the server accepts no actions, with a note that
 * says why. `also` disables single ones.
 */
export class Controls {
  note = el('p', { class: 'hint read-only', text: READ_ONLY })
  #groups = []

  constructor() {
    this.note.hidden = true
  }

  /** Puts nodes in a group, and returns it. */
  group(...nodes) {
    const set = el('fieldset', { class: 'controls' }, ...nodes)
    this.#groups.push(set)
    return set
  }

  update(server, isDisabled = false) {
    show(this.note, !server.may_write)
    const disabled = !server.may_write || isDisabled
    for (const set of this.#groups) disable(set, disabled)
  }
}
