// Numbers over time, as far as this page has seen them.

const SECONDS_MAX = 900
// Longer than the slowest answer: the page was hidden, or the server was gone.
const GAP_SECONDS = 20

/** Columns of numbers with their times. A missing number is `null`, which charts show as a gap. */
export class History {
  /** Seconds since the epoch. */
  times = []
  #columns
  #last = null

  /** `gauges` are stored as they are, `counters` as their increase per second. */
  constructor(gauges, counters) {
    this.gauges = gauges
    this.counters = counters
    this.#columns = new Map([...gauges, ...counters].map((name) => [name, []]))
  }

  column(name) {
    return this.#columns.get(name)
  }

  /** Returns the last number of a column, or `null`. */
  latest(name) {
    return this.#columns.get(name).at(-1) ?? null
  }

  /** Adds a sample. `epoch` differs after a restart, which sets the counters back. */
  add(values, epoch, now = Date.now() / 1000) {
    const last = this.#last
    if (last !== null && now <= last.now) return
    if (last !== null && now - last.now > GAP_SECONDS) this.#append((last.now + now) / 2, () => null)
    const isComparable = last !== null && last.epoch === epoch && now - last.now <= GAP_SECONDS
    this.#append(now, (name) => {
      // A standby has no numbers of jobs.
      if (this.gauges.includes(name)) return values[name] ?? null
      const increase = isComparable ? values[name] - last.values[name] : -1
      return increase < 0 ? null : increase / (now - last.now)
    })
    this.#last = { now, epoch, values }
    this.#trim(now)
  }

  #append(time, value) {
    this.times.push(time)
    for (const [name, column] of this.#columns) column.push(value(name))
  }

  #trim(now) {
    const old = this.times.findIndex((time) => time >= now - SECONDS_MAX)
    if (old <= 0) return
    this.times.splice(0, old)
    for (const column of this.#columns.values()) column.splice(0, old)
  }
}
