"""The table of the times of a run."""

import datetime
import os
import platform
import re

KINDS = ("install", "build", "check", "suite", "measurement")


def table(outcomes, wall):
    """Returns a table in Markdown: each step with its time, and the time that it waited or shared the cores with others."""
    ran = [each for each in outcomes if each.state in ("passed", "failed")]
    lines = ["| step | kind | began at | seconds | of CPU |", "|---|---|---:|---:|---:|"]
    for each in sorted(ran, key=lambda each: (KINDS.index(each.step.kind), -each.cpu)):
        began = f"{int(each.began) // 60}:{int(each.began) % 60:02}"
        lines.append(f"| {each.step.name} | {each.step.kind} | {began} | {each.wall:.0f} | {each.cpu:.0f} |")
    for kind in KINDS:
        of_kind = [each for each in ran if each.step.kind == kind]
        if of_kind:
            sums = sum(each.wall for each in of_kind), sum(each.cpu for each in of_kind)
            lines.append(f"| all of {len(of_kind)} | {kind} | | {sums[0]:.0f} | {sums[1]:.0f} |")
    cores = os.cpu_count()
    used = sum(each.cpu for each in ran) / max(wall * cores, 1)
    lines.append(f"| **the run** | | | **{wall:.0f}** | **{sum(each.cpu for each in ran):.0f}** |")
    day = datetime.date.today().isoformat()
    lines.append("")
    lines.append(f"{cores} cores, {100 * used:.0f} % of them used, Linux {platform.release().split('-')[0]}, {day}.")
    return "\n".join(lines) + "\n"


def publish(page, name, text):
    """Replaces the table of a plan in a page."""
    begin, end = f"<!-- times of ci/{name} -->", f"<!-- end of the times of ci/{name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{begin}\n\n{text}\n{end}", page.read_text())
    if count != 1:
        raise SystemExit(f"{page} has no place for the times of ci/{name}: {begin}")
    page.write_text(replaced)
