// Repeated reading of the server: one request at a time, none while the page is hidden, fewer while the server is gone.

import { Cancelled } from './api.js'

const SLOW_MS = 2000
const BACK_OFF_MS = [1000, 2000, 4000, 8000, 15000]
/** The interval of a page that needs no further reading: it shows nothing of the server, or what it shows is missing. */
export const NEVER = Infinity

export class Poller {
  #refresh
  #changed
  #controller = null
  #timer = null
  #failures = 0
  #stopped = true
  #acting = 0

  /** Milliseconds between the end of a reading and the next, or `NEVER`. */
  interval = 2000

  /**
   * `refresh(signal)` reads what is shown. `changed(state, detail)` hears of the states `live`, `idle` (no more is read), `slow`, `gone` (the
   * detail has the error and the time of the next attempt) and `refused` (the error).
   */
  constructor(refresh, changed) {
    this.#refresh = refresh
    this.#changed = changed
    document.addEventListener('visibilitychange', () => this.#visibilityChanged())
  }

  /** Reads at once, and then repeatedly. */
  start() {
    this.#stopped = false
    this.now()
  }

  /** Gives up a reading and makes no other until `start`. */
  stop() {
    this.#stopped = true
    this.#cancel()
  }

  /** Reads at once. A reading in progress is given up. */
  now() {
    this.#cancel()
    if (!this.#stopped && this.#acting === 0 && !document.hidden) this.#once()
  }

  /** Reads as soon as a reading in progress has ended. */
  soon() {
    if (this.#controller === null) this.now()
    else this.#controller.again = true
  }

  /** Carries out an action with no reading beside it, and reads its effect. */
  async act(action) {
    this.#acting += 1
    this.#cancel()
    try {
      return await action()
    } finally {
      this.#acting -= 1
      this.now()
    }
  }

  #cancel() {
    clearTimeout(this.#timer)
    this.#controller?.abort()
    this.#controller = null
  }

  #visibilityChanged() {
    if (document.hidden) this.#cancel()
    else this.now()
  }

  async #once() {
    const controller = new AbortController()
    this.#controller = controller
    // Of a server that is gone, a slow attempt says nothing new.
    const slow = setTimeout(() => this.#failures === 0 && this.#changed('slow'), SLOW_MS)
    let error = null
    try {
      await this.#refresh(controller.signal)
    } catch (caught) {
      error = caught
    } finally {
      clearTimeout(slow)
    }
    // A cancelled reading has a successor, or is not wanted.
    if (this.#controller !== controller || error instanceof Cancelled) return
    this.#controller = null
    this.#failures = error === null ? 0 : this.#failures + 1
    const delay = this.#delay(error, controller)
    this.#report(error, delay)
    if (!this.#stopped && delay !== NEVER) this.#timer = setTimeout(() => this.now(), delay)
  }

  #delay(error, controller) {
    if (error !== null) return BACK_OFF_MS[Math.min(this.#failures, BACK_OFF_MS.length) - 1]
    return controller.again ? 0 : this.interval
  }

  #report(error, delay) {
    if (error === null) this.#changed(delay === NEVER ? 'idle' : 'live')
    else if (error.status !== undefined) this.#changed('refused', { error })
    else this.#changed('gone', { error, at: Date.now() + delay })
  }
}
