"""Prints cases of cron lines in time zones, as cronsim has them: the times after a point, around each change of the clock.

    pip install cronsim==2.8 tzdata==2026.6
    PYTHONTZPATH= python cron_cases.py > cron_cases.tsv

Left out is what it gets wrong: a time behind a change by half an hour that repeats the time before it.
"""
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from cronsim import CronSim

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"]
LINES = [
    "30 2 * * *",
    "0 2,3 * * *",
    "15 0,1 * * *",
    "*/20 * * * *",
    "0 * * * *",
    "5 */2 * * *",
    "45 1-3 * * SUN",
    "0 0 * * *",
]
TIMES = 8
WRONG = {("Australia/Lord_Howe", "5 */2 * * *")}


def changes(zone):
    """The changes of the clock in 2026 and 2027."""
    at, found = datetime(2026, 1, 1, tzinfo=timezone.utc), []
    while at.year < 2028:
        after = at + timedelta(minutes=15)
        if at.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset():
            found.append(after)
        at = after
    return found


print("# " + __doc__.strip().replace("\n", "\n# "))
print("line\tzone\tafter\ttimes")
for name in ZONES:
    zone = ZoneInfo(name)
    for line in LINES:
        if (name, line) in WRONG:
            continue
        for change in changes(zone):
            is_wild = "*" in "".join(line.split()[:2])
            begin = (change - (timedelta(minutes=50) if is_wild else timedelta(hours=26))).astimezone(zone)
            times = CronSim(line, begin)
            shown = [int(next(times).timestamp()) for _ in range(TIMES if is_wild else 4)]
            print(line, name, int(begin.timestamp()), " ".join(map(str, shown)), sep="\t")
