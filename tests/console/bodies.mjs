// Bodies and names of every byte: shown as text, and never run.

import assert from 'node:assert/strict'
import fs from 'node:fs'
import { until, withConsole } from './kit.mjs'

const EVERY_BYTE = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
const MARKUP = [
  '<script>window.wasRun = true</script><img src=x onerror="window.wasRun = true"><svg onload="window.wasRun = true">',
  '</pre></main><iframe srcdoc="<script>parent.wasRun = true</script>"></iframe><a href="javascript:window.wasRun = true">x</a>',
].join('\n')
const LEGAL = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-+/;.$_()'

async function a_binary_body_is_shown_as_hex() {
  await withConsole({}, async (view, _, client) => {
    const id = await client.put('junk', EVERY_BYTE)
    await view.go(`#/jobs/${id}`)
    await view.shows('pre.body', /^00000000 {2}00 01 02 03 04 05 06 07 {2}08 09 0a 0b 0c 0d 0e 0f {2}\.{16}$/m)
    await view.shows('pre.body', /^000000f0 {2}f0 .* ff {2}\.{16}$/m)
    await view.shows('pre.body', /^00000040 .* {2}@ABCDEFGHIJKLMNO$/m)
    await view.shows('.body-view .hint', '256 B, binary')
    for (const kind of ['Text', 'JSON']) assert.ok(await view.page.getByRole('radio', { name: kind }).isDisabled())
    const [download] = await Promise.all([view.page.waitForEvent('download'), view.button('Save to a file').click()])
    assert.equal(download.suggestedFilename(), `job-${id}`)
    assert.deepEqual(fs.readFileSync(await download.path()), EVERY_BYTE)
  })
}

async function markup_is_shown_and_never_run() {
  await withConsole({}, async (view, _, client) => {
    const id = await client.put('page', MARKUP)
    for (const hash of [`#/jobs/${id}`, '#/tubes/page']) {
      await view.go(hash)
      if (hash.startsWith('#/tubes')) await view.button('Next ready').click()
      await view.shows('pre.body', MARKUP)
      assert.equal(await view.page.locator('pre.body *').count(), 0)
      assert.equal(await view.page.locator('iframe, main script, main img').count(), 0)
      assert.equal(await view.page.evaluate(() => window.wasRun === true), false)
    }
    // The browser itself refuses markup from strings.
    const refusal = await view.page.evaluate(() => {
      try {
        document.createElement('div').innerHTML = '<b>x</b>'
        return null
      } catch (error) {
        return error.name
      }
    })
    assert.equal(refusal, 'TypeError')
    view.faults = view.faults.filter((fault) => !fault.includes('TrustedHTML'))
  })
}

async function json_is_indented_and_otherwise_unchanged() {
  await withConsole({}, async (view, _, client) => {
    const body = '{"id":12345678901234567890,"a":[],"o":{},"s":"a\\"b: {x}, </script>","a":[1.50,true,null]}'
    const id = await client.put('json', body)
    await view.go(`#/jobs/${id}`)
    await view.shows('.body-view .hint', /JSON$/)
    assert.equal(
      await view.text('pre.body'),
      [
        '{',
        '  "id": 12345678901234567890,',
        '  "a": [],',
        '  "o": {},',
        '  "s": "a\\"b: {x}, </script>",',
        '  "a": [',
        '    1.50,',
        '    true,',
        '    null',
        '  ]',
        '}',
      ].join('\n'),
    )
    await view.page.getByRole('radio', { name: 'Text' }).check()
    assert.equal(await view.text('pre.body'), body)
    await view.page.getByRole('radio', { name: 'Hex' }).check()
    assert.match(await view.text('pre.body'), /^00000000 {2}7b 22 69 64/)
    const broken = await client.put('json', '{"a":')
    await view.go(`#/jobs/${broken}`)
    await view.shows('pre.body', '{"a":')
    await view.shows('.body-view .hint', '5 B, text')
  })
}

async function json_that_indentation_would_blow_up_is_shown_as_text() {
  await withConsole({ server: { flags: ['--http-allow-writes', '-z', '2m'] } }, async (view, _, client) => {
    const nested = (depth, inner = '') => `${'['.repeat(depth)}${inner}${']'.repeat(depth)}`
    for (const body of [nested(8100), nested(65), nested(4000, '1,'.repeat(50)).replaceAll(',]', ']')]) {
      const id = await client.put('deep', body)
      await view.go(`#/jobs/${id}`)
      await view.shows('.body-view .hint', /, JSON, not indented, since it has more than 64 levels$/)
      assert.equal(await view.text('pre.body'), body)
      assert.ok(await view.page.getByRole('radio', { name: 'JSON' }).isDisabled())
      await view.page.getByRole('radio', { name: 'Hex' }).check()
      assert.match(await view.text('pre.body'), /^00000000 {2}5b/)
    }
    const deepest = await client.put('deep', nested(64, '1'))
    await view.go(`#/jobs/${deepest}`)
    await view.shows('.body-view .hint', '129 B, JSON')
    assert.equal((await view.text('pre.body')).split('\n').length, 129)
    const wide = nested(60, `[${'1,'.repeat(30_000)}1]`)
    const id = await client.put('deep', wide)
    await view.go(`#/jobs/${id}`)
    await view.shows('.body-view .hint', /KiB, JSON, not indented, since that would be too long$/)
    assert.equal((await view.text('pre.body')).length, wide.length)
  })
}

async function invisible_characters_are_shown_by_number() {
  await withConsole({}, async (view, _, client) => {
    const id = await client.put('bidi', 'pay \u202e0001\u202c to a\u200bb\u2066\u00ad\u0085\u{e0041}\ufeff\tend 👍é')
    await view.go(`#/jobs/${id}`)
    const shown = 'pay ⟨U+202E⟩0001⟨U+202C⟩ to a⟨U+200B⟩b⟨U+2066⟩⟨U+00AD⟩⟨U+0085⟩⟨U+E0041⟩⟨U+FEFF⟩\tend 👍é'
    await view.shows('pre.body', shown)
    await view.shows('.body-view .hint', /, text, 8 invisible characters shown by number$/)
    const json = await client.put('bidi', '{"name":"\u202egpj.exe"}')
    await view.go(`#/jobs/${json}`)
    await view.shows('pre.body', '{\n  "name": "⟨U+202E⟩gpj.exe"\n}')
    await view.shows('.body-view .hint', /, JSON, 1 invisible character shown by number$/)
    // A name in an address, which no tube has.
    await view.go(`#/tubes/${encodeURIComponent('a\u202eb')}`)
    await view.shows('main p', /“a⟨U\+202E⟩b”/)
    assert.ok(!(await view.page.title()).includes('\u202e'))
  })
}

async function a_large_body_is_shown_in_part() {
  const flags = ['--http-allow-writes', '-z', '4m']
  await withConsole({ server: { flags } }, async (view, _, client) => {
    // Two bytes for each character, so that the part ends inside one.
    const id = await client.put('large', `x${'ä'.repeat(131_072)}`)
    await view.go(`#/jobs/${id}`)
    await view.shows('.body-view .hint', 'The first 256 KiB of 262,145 bytes, text')
    assert.match(await view.text('pre.body'), /^xä{131071}$/)
    await view.button('Show the whole body').click()
    await view.shows('.body-view .hint', '256.0 KiB, text')
    const huge = await client.put('large', Buffer.alloc(3_000_000, 'y'))
    await view.go(`#/jobs/${huge}`)
    await view.shows('.body-view .hint', 'The first 256 KiB of 3,000,000 bytes, text')
    assert.equal(await view.button('Show the whole body').count(), 0)
    const empty = await client.put('large', '')
    await view.go(`#/jobs/${empty}`)
    await view.shows('.body-view .hint', '0 B, empty')
  })
}

async function large_json_is_shown_as_json_or_says_why_not() {
  const flags = ['--http-allow-writes', '-z', '4m']
  await withConsole({ server: { flags } }, async (view, _, client) => {
    const json = (size) => `{"text":"${'x'.repeat(size - 11)}"}`
    const radio = view.page.getByRole('radio', { name: 'JSON' })
    const at = async (size) => view.go(`#/jobs/${await client.put('large', json(size))}`)
    await at(262_144)
    await view.shows('.body-view .hint', '256.0 KiB, JSON')
    assert.ok(await radio.isChecked())
    await at(300_000)
    await view.shows('.body-view .hint', /^The first 256 KiB of 300,000 bytes, text, JSON is shown once the whole body is$/)
    assert.ok(await radio.isDisabled())
    await view.button('Show the whole body').click()
    await view.shows('.body-view .hint', '292.9 KiB, JSON')
    await at(2_000_000)
    await view.shows('.body-view .hint', /^The first 256 KiB of .*, text, JSON is shown up to 1 MiB only$/)
  })
}

async function the_hex_dump_of_a_large_body_blocks_nothing() {
  const flags = ['--http-allow-writes', '-z', '1m']
  const bytes = 900_000
  await withConsole({ server: { flags } }, async (view, _, client) => {
    const id = await client.put('large', Buffer.alloc(bytes, Uint8Array.from({ length: 256 }, (_, byte) => byte)))
    await view.go(`#/jobs/${id}`)
    await view.shows('.body-view .hint', /binary$/)
    await view.page.locator('pre.body').evaluate((node) => {
      window.addedLines = []
      const linesOf = ({ addedNodes }) => [...addedNodes].map((one) => one.textContent.split('\n').length)
      new MutationObserver((records) => window.addedLines.push(...records.flatMap(linesOf))).observe(node, {
        childList: true,
      })
    })
    await view.button('Show the whole body').click()
    await view.shows('.body-view .hint', '878.9 KiB, binary')
    const lines = () =>
      view.page.locator('pre.body').evaluate((node) =>
        [...node.children].reduce((sum, piece) => sum + piece.textContent.split('\n').length, 0),
      )
    await until('all lines are there', async () => (await lines()) === bytes / 16)
    const added = await view.page.evaluate(() => window.addedLines)
    assert.ok(Math.max(...added) <= 1024, `${Math.max(...added)} lines in one frame`)
    assert.match(await view.page.locator('pre.body .piece').last().textContent(), /\n000dbb90 {2}90 /)
  })
}

async function tube_names_of_every_legal_byte_lead_to_their_tubes() {
  await withConsole({}, async (view, server, client) => {
    const all = [
      LEGAL.slice(1),
      LEGAL.repeat(3)
        .replace(/^[^/]*/, '')
        .slice(0, 200),
      '.',
      '..',
      '/',
      '//',
      'a/../b',
      '...',
      '(;)',
      '+',
    ]
    for (const name of all) await client.put(name, name)
    await view.go('#/tubes')
    await view.shows('.head .hint', `${all.length + 1} tubes`)
    for (const name of all) {
      await view.go('#/tubes')
      await view.page.getByRole('link', { name, exact: true }).click()
      await until(`the tube ${name}`, async () => (await view.text('h1')).trim() === `Tube ${name}`)
      await view.shows('.tile.ready .tile-value', '1')
      await view.button('Next ready').click()
      await view.shows('pre.body', name)
      await view.page.getByLabel('Seconds to pause').fill('100')
      await view.button('Pause').click()
      await view.shows('.pause-state', /^Paused/)
      await view.page.getByRole('link', { name: 'Put a job into this tube' }).click()
      await view.shows('h1', 'Put a job')
      await view.page.getByLabel('Body', { exact: true }).fill('second')
      await view.button('Put').click()
      await view.page.locator('.result a').first().waitFor()
      assert.ok((await view.text('.result')).endsWith(` into ${name}.`), name)
    }
    const { tubes } = await server.api('tubes?limit=500')
    for (const tube of tubes.filter((one) => one.name !== 'default')) {
      assert.deepEqual([tube.ready, tube.paused_seconds > 0], [2, true], tube.name)
    }
  })
}

export const checks = {
  a_binary_body_is_shown_as_hex,
  markup_is_shown_and_never_run,
  json_is_indented_and_otherwise_unchanged,
  json_that_indentation_would_blow_up_is_shown_as_text,
  invisible_characters_are_shown_by_number,
  a_large_body_is_shown_in_part,
  large_json_is_shown_as_json_or_says_why_not,
  the_hex_dump_of_a_large_body_blocks_nothing,
  tube_names_of_every_legal_byte_lead_to_their_tubes,
}
