// Says so if a file of the console does not arrive. It is no module, so that it needs no other file.

'use strict'

window.addEventListener(
  'error',
  ({ target }) => {
    if (!(target instanceof HTMLScriptElement)) return
    document.getElementById('loading').textContent =
      'The console is not loaded: the server did not send all of its files. Reload the page.'
  },
  // Errors of elements do not bubble.
  true,
)
