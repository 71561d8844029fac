#!/usr/bin/env python3
"""Checks the documents against the tree. Each relative link leads to a file and a heading. Each file that
docs/internals/ARCHITECTURE.md, docs/internals/A-PUT.md and CONTRIBUTING.md name exists, and each function that a page of docs/internals
names. CONTRIBUTING.md names only what the code has. Each row of the map in docs/internals/ARCHITECTURE.md, and each step of docs/internals/A-PUT.md, names something that its files define.

usage: python3 ci/docs.py [--fix]; --fix corrects the files of the map after functions have moved
       python3 ci/docs.py --pages DIR; checks only that the links of the pages below DIR lead to files there
"""

import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where the command line program is, which pages leave out as they leave out src/.
PROGRAM = ROOT / "src/bin/beanring"
ROOTS = (ROOT / "src", PROGRAM)
MAP = "docs/internals/ARCHITECTURE.md"
STEPS = "docs/internals/A-PUT.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DEFINITION = r"\b(?:fn|struct|enum|trait|const|static|type|mod) {}\b"


def documents():
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, text=True)
    return [ROOT / name for name in names.split()]


def prose(path):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path):
    for link in LINK.findall(prose(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            yield f"there is no {name}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{name or 'this page'} has no heading {anchor}"


def unmerged(path):
    if re.search(r"^(<<<<<<<|>>>>>>>)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        yield "it has the markers of a merge"


def rows(text):
    """The rows of the map: question, files, names."""
    section = text.partition("\n## Map\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "`" in cells[1]:
            yield cells[0], re.findall(r"`([^`]+\.rs)`", line), re.findall(r"`([\w:]+)`", cells[2])


def steps(text):
    """The steps of a command: number, files, names."""
    for number, what, files in re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", text, flags=re.MULTILINE):
        yield f"step {number}", re.findall(r"`([^`]+\.rs)`", files), re.findall(r"`(\w+::[a-z_]+)`", what)


def wrong_rows(described, least):
    """Names that are not defined in the files of their row. There must be at least `least` rows."""
    count = 0
    for question, files, names in described:
        count += 1
        paths = [root / name for name in files for root in ROOTS if (root / name).exists()]
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in names:
            if not re.search(DEFINITION.format(name.rpartition("::")[2]), text):
                yield f"{question} {name} is not defined in {', '.join(files)}"
    if count < least:
        yield f"there are {count} rows"


@functools.cache
def sources():
    """Each file below src/, with the names that it defines and all its words."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.rs")):
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(DEFINITION.format(r"(?=(\w+))"), text))
        name = path.relative_to(PROGRAM if path.is_relative_to(PROGRAM) else ROOT / "src").as_posix()
        assert name not in found, f"{name} is in src and in {PROGRAM}"
        found[name] = names, set(re.findall(r"\w+", text))
    return found


def defining(name):
    """The files below src/ that define a name, `function` or `Type::function`."""
    owner, _, function = name.rpartition("::")
    return [file for file, (names, words) in sources().items() if function in names and (not owner or owner in words)]


def fix_map():
    """Gives each row of the map the files that define its names. A name that several files define keeps its files."""
    path = ROOT / MAP
    text = path.read_text(encoding="utf-8")
    for line in text.partition("\n## Map\n")[2].partition("\n## ")[0].splitlines():
        cells = line.split(" | ")
        if len(cells) != 3 or not any(wrong_rows(rows(f"\n## Map\n{line}\n"), 1)):
            continue
        files = []
        for name in re.findall(r"`([\w:]+)`", cells[2]):
            found = defining(name)
            files += found if len(found) == 1 else [file for file in found if f"`{file}`" in cells[1]]
        if files:
            cells[1] = ", ".join(f"`{file}`" for file in dict.fromkeys(files))
            text = text.replace(line, " | ".join(cells))
    path.write_text(text, encoding="utf-8")


def undefined(path):
    """Names `Type::function` that no file below src/ defines."""
    for name in sorted(set(re.findall(r"`([A-Z]\w*::[a-z_]\w*)`", prose(path)))):
        if not defining(name):
            yield f"{name} is not defined below src/"


def unknown(path):
    """Names of code, such as `TUBE_RULES`, `RuleKey` or `Core::look`, that no program has."""
    words = set()
    for top in ("src", "tests", "ci", "deploy", "benches"):
        for file in (ROOT / top).rglob("*"):
            if file.suffix in ("", ".rs", ".py", ".js", ".mjs") and file.is_file():
                words |= set(re.findall(r"\w+", file.read_text(encoding="utf-8", errors="ignore")))
    for name in sorted(set(re.findall(r"`((?:\w+::)*\w*[A-Z_]\w*(?:::\w+)*)`", prose(path)))):
        if not set(name.split("::")) <= words:
            yield f"no file has the name {name}"


def missing_files(path):
    """Files are named from the top of the tree, from src/ or from src/bin/beanring/ on."""
    for name in sorted(set(re.findall(r"`((?:[a-z0-9_-]+/)+[a-z0-9_-]+\.[a-z]+)`", prose(path)))):
        if not any((root / name).exists() for root in (ROOT, *ROOTS)):
            yield f"there is no {name}"


def main():
    if sys.argv[1:2] == ["--pages"]:
        pages = sorted(pathlib.Path(sys.argv[2]).rglob("*.md"))
        wrong = [f"{page}: {problem}" for page in pages for problem in broken_links(page)]
        print("\n".join(wrong) or f"the links of {len(pages)} pages lead to files")
        return 1 if wrong or not pages else 0
    if sys.argv[1:] == ["--fix"]:
        fix_map()
    problems = [f"{path.relative_to(ROOT)}: {problem}" for path in documents() for problem in broken_links(path)]
    problems += [f"{path.relative_to(ROOT)}: {problem}" for path in documents() for problem in unmerged(path)]
    problems += [f"{name}: {problem}" for name in (MAP, STEPS, "CONTRIBUTING.md") for problem in missing_files(ROOT / name)]
    problems += [f"CONTRIBUTING.md: {problem}" for problem in unknown(ROOT / "CONTRIBUTING.md")]
    for path in sorted((ROOT / "docs/internals").glob("*.md")):
        problems += [f"{path.relative_to(ROOT)}: {problem}" for problem in undefined(path)]
    for name, described, least in ((MAP, rows, 25), (STEPS, steps, 25)):
        text = (ROOT / name).read_text(encoding="utf-8")
        problems += [f"{name}: {problem}" for problem in wrong_rows(described(text), least)]
    print("\n".join(problems) or "the documents agree with the tree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
