// Runs the checks of the console: see ci/console.
//
// Usage: node run.mjs [FILTER...]: only the checks whose names contain one of the texts.
//
// CONSOLE_NODE names the directory of the npm packages, CONSOLE_PROGRAM the server, and CHROMIUM the browser.

import { closeAll } from './kit.mjs'
import { checks as access } from './access.mjs'
import { checks as actions } from './actions.mjs'
import { checks as bodies } from './bodies.mjs'
import { checks as faults } from './faults.mjs'
import { checks as look } from './look.mjs'
import { checks as pages } from './pages.mjs'
import { checks as place } from './place.mjs'
import { checks as schedules } from './schedules.mjs'
import { checks as speed } from './speed.mjs'
import { checks as standby } from './standby.mjs'

const filters = process.argv.slice(2)
const all = { ...pages, ...place, ...actions, ...schedules, ...bodies, ...access, ...standby, ...faults, ...look, ...speed }

let status = 0
try {
  for (const [name, check] of Object.entries(all)) {
    if (filters.length > 0 && !filters.some((filter) => name.includes(filter))) continue
    console.log(`- ${name.replaceAll('_', ' ')}`)
    await check()
  }
} catch (error) {
  console.error(error)
  status = 1
} finally {
  await closeAll()
}
process.exit(status)
