// Numbers, sizes and times as text.

const WHOLE = new Intl.NumberFormat('en')
const SHORT = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 })

/** A whole number with separators. */
export const count = (number) => WHOLE.format(number)

/** A number in at most five characters, for an axis or a narrow cell. */
export const short = (number) => SHORT.format(number)

/** A number per second. */
export function rate(number) {
  if (number >= 100 || number === 0) return WHOLE.format(Math.round(number))
  return number < 0.1 ? '<0.1' : number.toFixed(1)
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB']

/** A size in bytes with one decimal, rounded down as by the command-line client: "63.9 KiB". */
export function bytes(number) {
  let unit = 0
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024
    unit += 1
  }
  return unit === 0 ? `${number} B` : `${(Math.floor(number * 10) / 10).toFixed(1)} ${UNITS[unit]}`
}

/** A size in bytes that is not rounded: in the largest unit that divides it, or in bytes. */
export function exactBytes(number) {
  let unit = 0
  while (number > 0 && number % 1024 === 0 && unit < UNITS.length - 1) {
    number /= 1024
    unit += 1
  }
  return unit === 0 ? counted(number, 'byte') : `${count(number)} ${UNITS[unit]}`
}

/** Seconds as the two largest units that are not zero: "3 d 4 h". Below a minute they may have decimals. */
export function seconds(number) {
  if (number > 0 && number < 60) return `${number} s`
  const parts = []
  let rest = Math.max(0, Math.floor(number))
  for (const [unit, size] of [
    ['d', 86400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ]) {
    const whole = Math.floor(rest / size)
    rest -= whole * size
    if (whole > 0 || (unit === 's' && parts.length === 0)) parts.push(`${whole} ${unit}`)
    // "1 d 0 h 5 min" would pretend to be exact.
    else if (parts.length > 0) break
    if (parts.length === 2) break
  }
  return parts.join(' ')
}

/** Seconds that are not rounded: "93,784 s (1 d 2 h)". */
export const exactSeconds = (number) => (number < 60 ? seconds(number) : `${count(number)} s (${seconds(number)})`)

/** A time that may be far below a second. */
export function shortTime(number) {
  if (number === 0) return '0 s'
  if (number < 0.001) return `${Math.round(number * 1e6)} µs`
  if (number < 1) return `${digits(number * 1000)} ms`
  return number < 60 ? `${digits(number)} s` : seconds(number)
}

/** A measured time in one unit, for a narrow cell: "1.3 min". */
export function roundTime(number) {
  if (number < 60) return shortTime(number)
  if (number < 3600) return `${digits(number / 60)} min`
  return number < 86400 ? `${digits(number / 3600)} h` : `${digits(number / 86400)} d`
}

// Two digits are enough: "2.3", "23", "230".
const digits = (number) => String(Number(number.toFixed(number < 10 ? 1 : 0)))

/** A number of things: "1 job", "2 jobs". */
export const counted = (number, thing) => `${count(number)} ${thing}${number === 1 ? '' : 's'}`

/** A time of day on a clock of 24 hours. */
export function clock(date) {
  const two = (number) => String(number).padStart(2, '0')
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
}

// Controls other than tab and line breaks, formats such as those of the direction of text, and characters without a glyph.
const HIDDEN = /[^\P{Cc}\t\n\r]|[\p{Cf}\p{Zl}\p{Zp}\u{34f}\u{115f}\u{1160}\u{3164}\u{ffa0}]/gu

/** A text whose invisible characters are replaced by their numbers: "⟨U+202E⟩". */
export const visible = (text) =>
  text.replace(HIDDEN, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`)

/** The number of invisible characters of a text. */
export const hiddenIn = (text) => text.match(HIDDEN)?.length ?? 0
