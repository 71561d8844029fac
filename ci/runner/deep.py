"""ci/deep takes hours: ci/deep.tsv notes when each part has last passed, and a run that was ended goes on with what is left."""

import datetime
import subprocess
from pathlib import Path

FILE = Path("ci/deep.tsv")
HEADING = "part\tseconds\tdate\tcommit\n"


def passed():
    """Returns the lines of the file by part."""
    lines = FILE.read_text().splitlines()[1:] if FILE.exists() else []
    return {line.split("\t")[0]: line for line in lines}


def commit():
    """Returns the last commit that has changed anything but the file, with a plus sign if the tree differs from it."""
    head = output("git", "log", "-1", "--format=%h", "--abbrev=12", "--", ".", f":!{FILE}")
    return head + ("+" if output("git", "status", "--porcelain", "--", ".", f":!{FILE}") else "")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def parts_left(plan, steps):
    """Returns the names of the steps without those that have passed at this commit. Those of a changed tree count for nothing."""
    if not plan.is_resumed:
        return [step.name for step in steps]
    now = commit()
    done = {part for part, line in passed().items() if line.endswith("\t" + now) and not now.endswith("+")}
    return [step.name for step in steps if is_part(step) and step.name not in done]


def is_part(step):
    return step.kind in ("suite", "measurement")


def note(plan, outcome, at):
    """Notes a part that has passed in a run that began at this commit."""
    if plan.is_resumed and outcome.state == "passed" and is_part(outcome.step):
        lines = passed()
        day = datetime.date.today().isoformat()
        lines[outcome.step.name] = f"{outcome.step.name}\t{outcome.wall:.0f}\t{day}\t{at}"
        FILE.write_text(HEADING + "".join(f"{lines[part]}\n" for part in sorted(lines)))
