"""Runs programs of docs/CLIENTS.md with the address of a server, and compares their output with the page.

Usage: page.py FILES HOST:PORT|unix:PATH DIRECTORY COMMAND...

A block after `<!-- file: CLIENT/NAME -->` is a file, and a block `text` after it is its output. All files are written into the
directory. There `COMMAND... CLIENT/NAME` runs those that have an output and that FILES selects: a CLIENT or a CLIENT/NAME. Over a
UNIX socket a comment "Over a UNIX socket: CODE" replaces the line before it, and files without one are left out.
"""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/CLIENTS.md"
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
UNIX = re.compile(r"^.*\n\s*(?:#|//) Over a UNIX socket: (.*)$", re.MULTILINE)
SECONDS = 60


def addressed(code, address):
    """The program with another address, or None if it cannot use the address."""
    if address.startswith("unix:"):
        code, count = UNIX.subn(r"\1", code)
        return code.replace("/run/beanring.sock", address.removeprefix("unix:")) if count else None
    host, port = address.rsplit(":", 1)
    return code.replace("127.0.0.1", host).replace("11300", port)


def main(files, address, directory, *command):
    directory = pathlib.Path(directory)
    count = 0
    for name, code, expected in FILE.findall(PAGE.read_text(encoding="utf-8")):
        program = addressed(code, address)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program or code, encoding="utf-8")
        if not f"{name}/".startswith(f"{files}/") or not expected or program is None:
            continue
        count += 1
        done = subprocess.run(
            [*command, name], cwd=directory, text=True, capture_output=True, timeout=SECONDS, check=False
        )
        if done.returncode or done.stdout != expected:
            sys.exit(f"{name} of docs/CLIENTS.md: exit code {done.returncode}, output:\n{done.stdout}{done.stderr}")
    if count == 0:
        sys.exit(f"docs/CLIENTS.md has no program {files} for {address}")
    print(f"programs of docs/CLIENTS.md over {address}: {count} passed")


main(*sys.argv[1:])
