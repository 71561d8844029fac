"""Runs the steps of a plan side by side on the cores of the machine, and measures each."""

import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

# The maximum number of steps beside the others that wait more than they compute.
WAITING_MAX = 2


@dataclass(frozen=True)
class Step:
    """A command of a plan. Its output goes to RESULTS/NAME.log."""

    name: str
    command: tuple = ()
    # "install", "build", "check", "suite" or "measurement".
    kind: str = "suite"
    # Names of steps that must have passed before.
    needs: tuple = ()
    # The cores that it keeps busy; 0 if it mostly waits.
    cores: int = 1
    # It syncs so often that it and another such step would be late beside each other.
    syncs: bool = False
    # Nothing else runs beside it.
    alone: bool = False
    environment: dict = field(default_factory=dict, hash=False)
    # How results.py reads the log: "status", "checks", "tests" of one program, or "results" of several.
    reads: str = "status"
    # For "tests": the program, and which of its tests run (arguments of libtest).
    program: str = ""
    selected: tuple = ()
    # The step is skipped, for the reason after it, if this command fails.
    condition: str = ""
    why_not: str = ""
    # The command that repeats it, unless it is the command itself.
    repeat: str = ""
    seconds_max: int = 1200

    def repeated_by(self):
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*words, self.repeat or shlex.join(self.command)])


@dataclass(frozen=True)
class Outcome:
    """The end of a step: "passed", "failed", "skipped" or "not run", and why. Times are in seconds of the wall clock, and of CPU."""

    step: Step
    state: str
    why: str = ""
    began: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0


class Schedule:
    """Runs each step as soon as what it needs has passed and cores are free, in the order of the plan."""

    def __init__(self, steps, results, environment, resolve, told):
        self.pending = sorted(steps, key=lambda step: step.alone)
        self.results = results
        self.environment = environment
        # Returns the command of a step. It may depend on what earlier steps have built.
        self.resolve = resolve
        # Is called with each outcome.
        self.told = told
        self.cores = os.cpu_count() or 1
        self.running = {}
        self.outcomes = {}
        self.ended = queue.Queue()
        self.begin = time.monotonic()

    def run(self):
        """Returns the outcomes by the names of the steps."""
        try:
            while self.pending or self.running:
                self.start_ready()
                if self.running:
                    self.end(self.ended.get())
        finally:
            for _, process in self.running.values():
                kill(process)
        return self.outcomes

    def start_ready(self):
        for step in list(self.pending):
            needed = [self.outcomes.get(name) for name in step.needs]
            lacking = [outcome for outcome in needed if outcome and outcome.state != "passed"]
            if lacking:
                self.pending.remove(step)
                state = "skipped" if all(each.state == "skipped" for each in lacking) else "not run"
                self.end(Outcome(step, state, lacking[0].why or f"{lacking[0].step.name} failed"))
            elif None not in needed and self.has_room_for(step):
                self.pending.remove(step)
                self.start(step)

    def has_room_for(self, step):
        others = [other for other, _ in self.running.values()]
        if step.alone:
            return not others and all(each.alone for each in self.pending)
        if step.syncs and any(other.syncs for other in others):
            return False
        if step.cores == 0:
            return sum(other.cores == 0 for other in others) < WAITING_MAX
        used = sum(other.cores for other in others)
        return used == 0 or used + step.cores <= self.cores

    def start(self, step):
        began = time.monotonic()
        if step.condition and not succeeds(step.condition, self.environment):
            return self.end(Outcome(step, "skipped", step.why_not, began - self.begin))
        environment = {**self.environment, "CARGO_BUILD_JOBS": str(max(step.cores, 1)), **step.environment}
        try:
            with open(self.results / f"{step.name}.log", "wb") as log:
                process = subprocess.Popen(
                    self.resolve(step), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except (LookupError, OSError) as error:
            return self.end(Outcome(step, "failed", str(error), began - self.begin))
        self.running[step.name] = (step, process)
        threading.Thread(target=self.await_end, args=(step, process, began), daemon=True).start()

    def await_end(self, step, process, began):
        late = threading.Timer(step.seconds_max, kill, [process])
        late.start()
        # With the time of the processes that it has started and awaited.
        _, status, usage = os.wait4(process.pid, 0)
        is_late = not late.is_alive()
        late.cancel()
        # What the step has left behind would disturb others.
        kill(process)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        why = f"it ran longer than {step.seconds_max} s" if is_late else f"it ended with code {code}"
        state, why = ("passed", "") if code == 0 else ("failed", why)
        wall = time.monotonic() - began
        self.ended.put(Outcome(step, state, why, began - self.begin, wall, usage.ru_utime + usage.ru_stime))

    def end(self, outcome):
        self.running.pop(outcome.step.name, None)
        self.outcomes[outcome.step.name] = self.told(outcome)


def kill(process):
    """Ends a process and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def succeeds(command, environment):
    """Whether a command ends with success, within two minutes."""
    words = ["bash", "-c", command]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(words, env=environment, timeout=120, check=False, **silent).returncode == 0
    except subprocess.TimeoutExpired:
        return False
