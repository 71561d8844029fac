// Requests to the server. All paths are relative to the page, so that it works behind a proxy that adds a prefix.

// Servers behind one proxy, at different paths, share what a tab stores.
const TOKEN_KEY = `beanring-token:${location.pathname}`
/** What a token may be: 16 to 256 visible ASCII characters. A browser cannot send others. */
export const TOKEN = '[\\x21-\\x7E]{16,256}'
const IS_TOKEN = new RegExp(`^${TOKEN}$`)
const TIMEOUT_MS = 15000

/** The server has answered with an error. */
export class Refused extends Error {
  constructor(path, status, word, message, lacksRight = false) {
    super(message)
    this.path = path
    this.status = status
    this.word = word
    /** Whether a user, who is known, lacks a right. */
    this.lacksRight = lacksRight
  }
}

/** There is no answer: the server is gone, or too slow. */
export class Unreachable extends Error {}

/** The answer is not of the API. */
export class Garbled extends Error {}

/** The request was given up by this page. */
export class Cancelled extends Error {}

export const token = {
  get: () => {
    const text = sessionStorage.getItem(TOKEN_KEY)
    return text !== null && IS_TOKEN.test(text) ? text : null
  },
  set: (text) => sessionStorage.setItem(TOKEN_KEY, text),
  forget: () => sessionStorage.removeItem(TOKEN_KEY),
}

/**
 * A tube name as a segment of a path, encoded twice: a browser resolves the segments "." and "..", and a proxy may decode
 * "x%2F..%2Fy" and resolve that. The server accepts it, since no tube name contains "%".
 */
export function segment(name) {
  const once = name === '.' || name === '..' ? name.replaceAll('.', '%2E') : encodeURIComponent(name)
  return encodeURIComponent(once)
}

async function request(method, path, { signal = null, headers = {}, body = null } = {}) {
  const secret = token.get()
  if (secret !== null) headers = { ...headers, Authorization: `Bearer ${secret}` }
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const signals = signal === null ? timeout : AbortSignal.any([signal, timeout])
  try {
    const response = await fetch(`api/v1/${path}`, {
      method,
      headers,
      body,
      signal: signals,
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
    })
    const bytes = new Uint8Array(await response.arrayBuffer())
    if (!response.ok) throw refusal(path, response, bytes)
    return { response, bytes }
  } catch (error) {
    if (error instanceof Refused) throw error
    if (signal?.aborted) throw new Cancelled()
    const why = timeout.aborted ? `no response within ${TIMEOUT_MS / 1000} seconds` : 'the connection failed'
    throw new Unreachable(why, { cause: error })
  }
}

function refusal(path, response, bytes) {
  try {
    const { error, message, missing_rights: missing } = JSON.parse(new TextDecoder().decode(bytes))
    if (typeof message === 'string')
      return new Refused(path, response.status, String(error), sentence(message), missing !== undefined)
  } catch {
    // A proxy in front of the server may answer with a page of its own.
  }
  return new Refused(path, response.status, 'internal', `The response was ${response.status} ${response.statusText}.`)
}

// The messages of the API are for programs too, which put them after a colon.
const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`

function parsed({ bytes }) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes))
  } catch (error) {
    throw new Garbled('The response is not JSON. Another program may use this address', { cause: error })
  }
}

/** Reads a JSON object. */
export const read = async (path, signal) => parsed(await request('GET', path, { signal }))

/** Reads a JSON object, or returns `null` if the server says that there is no such thing. */
export async function find(path, signal) {
  try {
    return await read(path, signal)
  } catch (error) {
    // A proxy that does not reach the server may say 404 too.
    if (error instanceof Refused && error.status === 404 && error.word === 'not-found') return null
    throw error
  }
}

/** Carries out an action. */
export async function act(path, parameters = {}) {
  const headers = { 'Content-Type': 'application/json' }
  return parsed(await request('POST', path, { headers, body: JSON.stringify(parameters) }))
}

/** Deletes a job or a schedule. */
export const remove = async (path) => parsed(await request('DELETE', path))

/**
 * Puts a job. `parameters` are its numbers and tags, and `body` is a string or a file. Returns its id. If it repeats an
 * idempotency key, that is the id of the first job, whose state is returned too.
 */
export const put = (tube, parameters, body) => sendBody('POST', `tubes/${segment(tube)}/jobs`, parameters, body)

/** Adds a schedule, or replaces it. `parameters` are its tube, its times and its numbers, and `body` is that of its jobs. */
export const putSchedule = (name, parameters, body) => sendBody('PUT', `schedules/${segment(name)}`, parameters, body)

async function sendBody(method, path, parameters, body) {
  const query = new URLSearchParams(parameters)
  const headers = { 'Content-Type': 'application/octet-stream' }
  // The bytes, since a file has a content type of its own.
  const bytes = typeof body === 'string' ? new TextEncoder().encode(body) : await body.arrayBuffer()
  return parsed(await request(method, `${path}?${query}`, { headers, body: bytes }))
}

/** Reads the body of a job, or its first `limit` bytes. Returns them and the size of the whole body. */
export async function readBody(id, limit = null, signal = null) {
  const query = limit === null ? '' : `?limit=${limit}`
  const { response, bytes } = await request('GET', `jobs/${id}/body${query}`, { signal })
  return { bytes, size: Number(response.headers.get('X-Body-Bytes') ?? bytes.length) }
}
