// Who may read and act.

import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { Console, HOST, Server, withConsole } from './kit.mjs'

const TOKEN = 'a-token-of-the-tests-0123456789'

async function withToken(use, flag = '--http-token', text = `${TOKEN}\n`) {
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'beanring-token-')), 'token')
  fs.writeFileSync(file, text, { mode: 0o600 })
  const server = await Server.start({ flags: [flag, file] })
  await use(server)
  await server.close()
  fs.rmSync(path.dirname(file), { recursive: true })
}

async function a_wrong_token_is_refused_and_the_right_one_opens() {
  await withToken(async (server) => {
    const view = await Console.open(server, '#/tubes', { expected: [/401/] })
    await view.shows('h1', 'This server needs a token')
    assert.equal(await view.page.locator('.problem').count(), 0)
    const input = view.page.getByLabel('Token', { exact: true })
    assert.equal(await input.getAttribute('type'), 'password')
    await input.fill('a-wrong-token-0123456789')
    await view.button('Open the console').click()
    await view.shows('.problem', 'The server does not accept this token.')
    await view.page.getByLabel('Token', { exact: true }).fill(` ${TOKEN} `)
    await view.page.keyboard.press('Enter')
    await view.shows('h1', 'Tubes')
    await view.shows('.head .hint', '1 tube')
    // It stays with the tab, through a reload, and is in no address.
    await view.page.reload()
    await view.shows('.head .hint', '1 tube')
    assert.ok(!view.page.url().includes(TOKEN))
    assert.ok((await view.watched()).requests.every((request) => !request.includes(TOKEN)))
    assert.equal(await view.page.evaluate(() => localStorage.length), 0)
    await view.go('#/put')
    await view.button('Put').click()
    await view.shows('.result', /into default/)
    const other = await Console.open(server, '#/', { expected: [/401/] })
    await other.shows('h1', 'This server needs a token')
    await other.close()
    await view.go('#/')
    await view.button('Forget the token').click()
    await view.shows('h1', 'This server needs a token')
    assert.equal(await view.page.evaluate(() => sessionStorage.length), 0)
    await view.close()
  })
}

async function a_token_that_cannot_be_sent_does_not_lock_the_console() {
  await withToken(async (server) => {
    const view = await Console.open(server, '#/tubes', { expected: [/401/] })
    await view.shows('h1', 'This server needs a token')
    const input = view.page.getByLabel('Token', { exact: true })
    const sent = async () => (await view.watched()).requests.length
    const before = await sent()
    for (const wrong of ['tökén-of-the-tests-0123456789', 'сообщение-сообщение', 'short', 'a b'.repeat(10), 'x'.repeat(257)]) {
      await input.fill(wrong)
      await view.button('Open the console').click()
      assert.equal(await input.evaluate((node) => node.validity.patternMismatch), true, wrong)
    }
    assert.equal(await sent(), before)
    // One that an older console has stored.
    for (const stored of ['tökén-of-the-tests-0123456789', 'сообщение-сообщение']) {
      await view.page.evaluate((text) => sessionStorage.setItem('beanring-token:/', text), stored)
      await view.page.reload()
      await view.shows('h1', 'This server needs a token')
    }
    // One that a proxy answers with 400.
    await view.page.evaluate((text) => sessionStorage.setItem('beanring-token:/', text), TOKEN)
    await view.page.route('**/api/v1/server', (route) => route.fulfill({ status: 400, body: 'Bad Request' }))
    view.faults = []
    await view.page.reload()
    await view.shows('.problem', 'The server does not accept this token.')
    assert.equal(await view.page.evaluate(() => sessionStorage.getItem('beanring-token:/')), null)
    await view.page.unroute('**/api/v1/server')
    await view.page.getByLabel('Token', { exact: true }).fill(TOKEN)
    await view.page.keyboard.press('Enter')
    await view.shows('.head .hint', '1 tube')
    view.faults = view.faults.filter((fault) => !fault.includes('400'))
    await view.close()
  })
}

async function a_user_who_may_inspect_no_tube_that_exists_is_told_so() {
  const users = `[users.ann]\ntoken = "${TOKEN}"\ninspect = ["mail/*"]\n`
  await withToken(
    async (server) => {
      const view = await Console.open(server, '#/tubes', { expected: [/401/] })
      await view.page.getByLabel('Token', { exact: true }).fill(TOKEN)
      await view.button('Open the console').click()
      await view.shows('.empty:visible', 'You may inspect no tube that exists.')
      await view.page.getByRole('searchbox').fill('m')
      await view.shows('.empty:visible', 'No tube name contains this text.')
      await view.close()
    },
    '--auth',
    users,
  )
}

async function a_user_who_may_only_produce_can_put() {
  const users = `[users.ann]\ntoken = "${TOKEN}"\nproduce = ["mail"]\n`
  const enter = async (view) => {
    await view.page.getByLabel('Token', { exact: true }).fill(TOKEN)
    await view.button('Open the console').click()
  }
  await withToken(
    async (server) => {
      const view = await Console.open(server, '#/', { expected: [/401/, /403/] })
      await enter(view)
      await view.shows('h1', 'The server refuses access')
      await view.page.getByText('This user lacks the right inspect on any tube: see the file of --auth.').waitFor()
      await view.page.getByRole('link', { name: 'Put a job' }).click()
      await view.shows('h1', 'Put a job')
      await view.page.getByText('Only this page is open to you. This user lacks the right inspect on any tube').waitFor()
      await view.button('Put').click()
      await view.notice(/^This user lacks the right produce on the tube default: see the file of --auth\.$/)
      await view.page.getByLabel('Tube', { exact: true }).fill('mail')
      await view.button('Put').click()
      await view.shows('.result', /^Put job 1 into mail\.$/)
      await view.go('#/tubes')
      await view.shows('h1', 'The server refuses access')
      await view.button('Use another token').click()
      await view.shows('h1', 'This server needs a token')
      await view.close()
    },
    '--auth',
    users,
  )
}

async function without_permission_the_console_is_read_only() {
  await withConsole({ server: { flags: [] } }, async (view, _, client) => {
    const id = await client.put('mail', 'x', { delay: 1000 })
    await view.page.getByText('Read-only').waitFor()
    assert.ok(await view.button('Drain').isDisabled())
    await view.go('#/tubes/mail')
    await view.page.getByText('Read-only').waitFor()
    for (const name of ['Pause', 'Kick', 'Delete unreserved jobs', 'Set the rule']) assert.ok(await view.button(name).isDisabled(), name)
    // Looking is allowed.
    await view.button('Next delayed').click()
    await view.shows('pre.body', 'x')
    await view.go(`#/jobs/${id}`)
    await view.page.getByText('Read-only').waitFor()
    for (const name of ['Kick', 'Release', 'Bury', 'Delete']) assert.ok(await view.button(name).isDisabled(), name)
    await view.go('#/put')
    await view.page.getByText('Read-only').waitFor()
    assert.ok(await view.button('Put').isDisabled())
  })
}

async function a_refusal_names_what_to_do() {
  let isRefused = true
  const before = (page) =>
    page.route('**/api/v1/**', (route) =>
      isRefused
        ? route.fulfill({
            status: 403,
            json: { error: 'forbidden', message: 'Start the server with --http-token FILE.' },
          })
        : route.continue(),
    )
  await withConsole({ before, expected: [/403/] }, async (view) => {
    await view.shows('h1', 'The server refuses access')
    await view.page.getByText('Start the server with --http-token FILE.').waitFor()
    isRefused = false
    await view.button('Try again').click()
    await view.shows('h1', 'Overview')
    await view.shows('#connection-text', 'Live')
  })
}

// Opens a page of a server behind a proxy, which asks for `path(url)` of it.
async function behindProxy(path, page, use) {
  const server = await Server.start()
  const proxy = http.createServer((request, response) => {
    if (!request.url.startsWith('/queue/')) return response.writeHead(500).end()
    const { method, headers } = request
    const onward = http.request(
      { host: HOST, port: server.httpPort, path: path(request.url.slice('/queue'.length)), method, headers },
      (answer) => {
        response.writeHead(answer.statusCode, answer.headers)
        answer.pipe(response)
      },
    )
    request.pipe(onward)
  })
  await new Promise((resolve) => proxy.listen(0, HOST, resolve))
  const view = await Console.open({ url: `http://${HOST}:${proxy.address().port}/queue/` }, page, { expected: [/404/] })
  await use(view, server)
  await view.close()
  proxy.closeAllConnections()
  proxy.close()
  await server.close()
}

async function a_proxy_may_add_a_path() {
  await behindProxy((url) => url, '#/put', async (view) => {
    await view.button('Put').click()
    await view.shows('.result', /into default/)
  })
}

// As nginx does if its proxy_pass has a path.
function decoded(url) {
  const [path, query] = url.split(/\?(.*)/s)
  const resolved = new URL(decodeURIComponent(path).replaceAll('%', '%25'), 'http://proxy').pathname
  return query === undefined ? resolved : `${resolved}?${query}`
}

async function a_proxy_that_decodes_paths_changes_no_name() {
  const name = 'x/../victim'
  await behindProxy(decoded, '#/tubes', async (view, server) => {
    const client = await server.client()
    for (const tube of [name, 'victim']) await client.put(tube, 'x')
    await view.go(`#/tubes/${encodeURIComponent(name)}`)
    await view.button('Delete unreserved jobs').click()
    await view.page.getByRole('dialog').getByRole('button', { name: 'Delete unreserved jobs' }).click()
    await view.notice(/^Deleted 1 job\.$/)
    assert.equal((await server.api('tubes/victim')).ready, 1)
    client.close()
  })
}

export const checks = {
  a_wrong_token_is_refused_and_the_right_one_opens,
  a_token_that_cannot_be_sent_does_not_lock_the_console,
  a_user_who_may_inspect_no_tube_that_exists_is_told_so,
  a_user_who_may_only_produce_can_put,
  without_permission_the_console_is_read_only,
  a_refusal_names_what_to_do,
  a_proxy_may_add_a_path,
  a_proxy_that_decodes_paths_changes_no_name,
}
