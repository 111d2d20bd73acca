"""How tests/gpu/run runs stages: one after the other, each with a limit, results saved after each, a summary last."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time

LOOK_S = 0.05
GRACE_S = 5  # between SIGTERM and SIGKILL, and kept of the budget for the summary
SKIPPED = 77  # exit status of a stage that could not test anything here
PR_SET_CHILD_SUBREAPER = 36
LINES_OF_FAILURE = 40
FIGURE = re.compile(r"^(?:\[\d+\] )?(# .*)$", re.MULTILINE)  # also of a rank of coordrun
TEST_SKIPPED = re.compile(r"""\bskipped (['"])(.*)\1$""", re.MULTILINE)
BAR = re.compile(r"^# (.*) (met|MISSED)$")


class Stage:
    """A command with a limit. `needs`: why it cannot run here, or ""; or what tells it. `note`: what has to be known to read its figures.
    `unsupported`: where a failure's output has this, the stage was not possible here."""

    def __init__(self, name, call, limit_s, what, command, environment=None, needs="", note="", unsupported=None):
        self.name, self.call, self.limit_s, self.what = name, call, limit_s, what
        self.command, self.environment, self.needs, self.note = command, environment or {}, needs, note
        self.unsupported = unsupported

    def is_named(self, name):
        """Also by what stands before its name's first "-"."""
        return name in (self.name, self.name.split("-")[0])


class Result:
    def __init__(self, stage, result, seconds=0.0, reason="", text=""):
        self.stage, self.result, self.seconds, self.reason = stage, result, seconds, reason
        self.figures = FIGURE.findall(text)

    def as_json(self):
        return {"stage": self.stage.name, "result": self.result, "seconds": round(self.seconds, 1), "limit_s": self.stage.limit_s,
                "reason": self.reason, "note": self.stage.note, "log": log_name(self.stage)}

    def bars(self):
        """Of its figures those with a bar: (text, whether it was met)."""
        found = (BAR.match(line) for line in self.figures)
        return [(match.group(1), match.group(2) == "met") for match in found if match]


def log_name(stage):
    return f"{stage.name}.log"


class Run:
    """`folder`: gets NAME.log of each stage, summary.txt and summary.json; None where nothing is run. `facts`: of this machine, for the summary."""

    def __init__(self, folder, facts, budget_s, quiet):
        self.folder, self.facts, self.quiet = folder, facts, quiet
        self.ends = None if budget_s is None else time.monotonic() + budget_s
        self.results = []

    def without_stages(self, outcome, why):
        """Says that nothing is run, and why."""
        print(f"tests/gpu/run: {outcome.upper()}, {why}", file=sys.stderr)
        if self.folder is not None:
            self.save(outcome, why)

    def stages(self, stages, fail_on_bars):
        """Runs them; the exit status."""
        # What a stage leaves behind becomes a child of this process, and is ended before the next one begins.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            for stage in stages:
                print(f"=== {stage.name}", flush=True)
                self.results.append(self.one(stage))
                self.save("unfinished")
        finally:
            end_children()
        bad = [result.stage.name for result in self.results if result.result not in ("passed", "skipped")]
        missed = fail_on_bars and any(not met for result in self.results for _, met in result.bars())
        self.save("failed" if bad or missed else "passed")
        sys.stdout.write(self.summary())
        if bad:
            print(f"tests/gpu/run: FAILED: {' '.join(bad)}")
        else:
            print("tests/gpu/run: all that was run has passed" + (", and a bar was missed" if missed else ""))
        print(f"tests/gpu/run: results are in {self.folder}", flush=True)
        return 1 if bad or missed else 0

    def one(self, stage):
        needs = stage.needs() if callable(stage.needs) else stage.needs
        if needs:
            print(f"skipped: {needs}", flush=True)
            return Result(stage, "skipped", reason=needs)
        limit_s = stage.limit_s
        if self.ends is not None:
            limit_s = min(limit_s, self.ends - GRACE_S - time.monotonic())
        if limit_s < 1:
            print("not run: no time left", flush=True)
            return Result(stage, "not run", reason="no time left")
        path = os.path.join(self.folder, log_name(stage))
        begun = time.monotonic()
        with open(path, "wb") as log:
            child = subprocess.Popen(stage.command, env={**os.environ, **stage.environment}, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = self.follow(child, path, begun + limit_s)
            finally:
                end_group(child)
                end_children()
        seconds = time.monotonic() - begun
        with open(path, encoding="utf-8", errors="replace") as log:
            text = log.read()
        result, reason = judge(stage, status, text, limit_s)
        if self.quiet and result not in ("passed", "skipped"):
            print("\n".join(text.splitlines()[-LINES_OF_FAILURE:]))
        print(f"{result} in {seconds:.1f} s{': ' + reason if reason else ''}", flush=True)
        return Result(stage, result, seconds, reason, text)

    def follow(self, child, path, deadline):
        """Shows what it prints; its exit status, None when it has been ended at the deadline."""
        with open(path, "rb") as log:
            while True:
                ended = child.poll() is not None
                if not self.quiet:
                    sys.stdout.buffer.write(log.read())
                    sys.stdout.flush()
                if ended:
                    return child.returncode
                if time.monotonic() > deadline:
                    return None
                try:
                    child.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    pass

    def summary(self, reason=""):
        lines = ["=== summary", *([reason] if reason else [])]
        for result in self.results:
            reason = f"  ({result.reason})" if result.reason else ""
            lines.append(f"{result.stage.name:22} {result.result:9} {result.seconds:6.1f} s{reason}")
        lines.append("=== bars")
        for result in self.results:
            if not result.figures:
                continue
            lines.append(f"{result.stage.name}{': ' + result.stage.note if result.stage.note else ''}")
            lines += result.figures
        return "\n".join(lines) + "\n"

    def save(self, outcome, reason=""):
        with open(os.path.join(self.folder, "summary.txt"), "w", encoding="utf-8") as file:
            file.write(self.summary(f"{outcome}: {reason}" if reason else ""))
        bars = [{"stage": result.stage.name, "bar": text, "met": met, "note": result.stage.note}
                for result in self.results for text, met in result.bars()]
        summary = {"result": outcome, "reason": reason, "facts": self.facts,
                   "stages": [result.as_json() for result in self.results], "bars": bars}
        path = os.path.join(self.folder, "summary.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=1)
        os.replace(path + ".part", path)


def judge(stage, status, text, limit_s):
    """(result, reason)."""
    if status == 0:
        return "passed", ""
    if status is None:
        return "TIMED OUT", f"after {limit_s:.0f} s"
    if status == SKIPPED:
        return "skipped", why_skipped(text)
    if stage.unsupported and stage.unsupported in text:
        return "skipped", stage.unsupported
    return "FAILED", f"exit status {status}"


def why_skipped(text):
    """What a stage that ended with SKIPPED has said last; where that is unittest's count, what its tests have said."""
    last = (text.strip().splitlines() or ["nothing could be tested here"])[-1]
    reasons = dict.fromkeys(reason for _, reason in TEST_SKIPPED.findall(text)) if last.startswith("OK (skipped=") else {}
    return "; ".join(reasons) or last


def end_group(child):
    """Asks what is left of a stage's process group to end, then ends it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def end_children():
    """Ends every process that has become this one's child, and those that become it thereby."""
    for _ in range(100):
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:  # some kernels' /proc has it not; the process groups have been ended
            return
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
