// A group: how many of its jobs are left, what waits for them, and what they wait for.

import { find, segment } from './api.js'
import { checkAgain } from './actions.js'
import { findGroupForm } from './find.js'
import * as format from './format.js'
import { card, el, facts, show } from './dom.js'
import { STATES } from './overview.js'
import { NEVER } from './poll.js'

const INTERVAL_MS = 2000

/** The link to the page of a group. */
export const groupLink = (name) =>
  el('a', { href: `#/groups/${encodeURIComponent(name)}`, class: 'tube-name', text: name })

/** Links with a comma between two. */
const listed = (links) => links.flatMap((link, index) => (index === 0 ? [link] : [', ', link]))

class Group {
  #name
  #members = facts(Object.fromEntries(STATES.map(({ name, label }) => [name, label])))
  #others = facts({ waiting: 'Jobs that wait for it', ahead: 'Groups that it waits for' })
  #found
  #missing

  constructor(app, name) {
    this.#name = name
    this.title = `Group ${name}`
    this.interval = INTERVAL_MS
    this.#found = el(
      'div',
      { class: 'cards', hidden: true },
      card('Jobs of the group', this.#members.node),
      card(
        'Order',
        this.#others.node,
        el('p', {
          class: 'hint',
          text: 'The jobs that wait for the group become ready when its last job is deleted.',
        }),
      ),
    )
    this.#missing = el(
      'div',
      { class: 'empty-state', hidden: true },
      el('p', { text: 'There is no such group now. A group exists while it has a job.' }),
      checkAgain(app.poller),
      findGroupForm(),
    )
    this.node = el(
      'div',
      {},
      el('p', { class: 'crumbs' }, el('a', { href: '#/jobs', text: 'Jobs' })),
      el('h1', {}, 'Group ', el('span', { class: 'tube-name', text: name })),
      this.#missing,
      this.#found,
    )
  }

  async refresh(signal) {
    const group = await find(`groups/${segment(this.#name)}`, signal)
    this.interval = group === null ? NEVER : INTERVAL_MS
    show(this.#missing, group === null)
    show(this.#found, group !== null)
    if (group === null) return
    this.#members.set(Object.fromEntries(STATES.map(({ name }) => [name, format.count(group[name])])))
    this.#others.set({
      waiting: format.count(group.waiting_jobs),
      ahead: group.waits_for.length === 0 ? 'none' : listed(group.waits_for.map(groupLink)),
    })
  }
}

export const groupPage = (app, name) => new Group(app, name)
