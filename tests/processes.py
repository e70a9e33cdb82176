"""Starts commands in processes of their own, quickly: torch is imported once, then forked.

Reads a number and a list of jobs a line, in JSON; starts them all, waits for them, and answers
with one line. A process of its own, and not the one that runs the tests, since one with threads
cannot be forked. Its argument is the number of steps in which heads are fine-tuned.
"""

import atexit
import errno
import gc
import io
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path

import typer.main
from markupsafe import Markup
from PIL import Image

from lmrc import cli
from lmrc.practice import usage
from lmrc.practice.checkpoint import FolderCheckpoint
from lmrc.statistics import classifiers

SPACE = ("open", "os.mkdir", "os.rename", "fsync")  # what a full disk may refuse
PATIENCE = 600  # seconds that any of them may take, on a slow machine
END = "\x1e"  # begins the line that tells how a command ended
STEPS = (*SPACE, "os.remove", "os.rmdir")  # after each of them the disk holds something else
#: What commands import only when they need it, for a second each time.
NEEDS = {
    "reproduce": (
        *("lmrc.experiments.reproduce", "lmrc.methods.ewc", "lmrc.report.page"),
        *("matplotlib.figure", "sklearn.datasets", "sklearn.model_selection"),
    )
}


def prepare_fault(job):
    """Arrange in the new process for what is to go wrong; see the fixture `run_jobs`."""
    if "limit" in job:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    if "memory" in job:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + job["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if "undrawn" in job:
        from lmrc.report import figures

        figures.to_png = lambda _: b""
        if job["undrawn"] == "all":
            figures.to_svg = lambda *_, **__: Markup("<svg></svg>")
    if "epochs" in job:
        _stop_after_epochs(job["epochs"], job.get("signal", signal.SIGKILL))
    if "step" in job:
        _stop_at(job["step"], job["how"])
    if job.get("harmless") and os.geteuid() == 0:  # nothing is read-only to root
        os.seteuid(65534)


def _stop_after_epochs(epochs, how):
    save = FolderCheckpoint.save

    def save_and_stop(self, records, *rest):
        save(self, records, *rest)
        if self._done(records) == epochs:
            os.kill(os.getpid(), how)

    FolderCheckpoint.save = save_and_stop


def _stop_at(step, how):
    """Be killed at the n-th step of writing, or have a full disk from then on.

    Or else keep what the folder ``m`` holds before each step: what a kill would leave there.
    """
    steps, copies = 0, False

    def take(name):
        nonlocal steps, copies
        if copies:  # the copy is no step of the command
            return
        steps += 1
        if how == "watched":
            copies = True
            shutil.copytree("m", f"steps/{steps:03}") if Path("m").exists() else None
            copies = False
            return
        if steps <= step:
            return
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name in SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watch(event, arguments):
        if event in STEPS and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            take(event)

    sync = os.fsync

    def fsync(handle):
        take("fsync")
        sync(handle)

    os.fsync = fsync
    sys.addaudithook(watch)


def start(job):
    """Start a job; return its process and where to read what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        signal.alarm(PATIENCE)  # which no one handles: the process ends
        os.chdir(job["place"])
        os.environ |= job.get("environment", {})
        prepare_fault(job)
        if "program" in job:
            code = run_program(job["program"], job.get("arguments", ()))
        elif "words" in job:
            code = run(job["words"])
        else:
            code = run_each(job["commands"], job["seconds"])
        atexit._run_exitfuncs()  # ends workers of its own, which else would notice late
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 3  # no command ends so
    os._exit(code)


def run(words):
    """Run a command; return its exit code."""
    sys.argv = ["lmrc", *words]
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0


def run_program(path, arguments):
    """Run a Python program; return its exit code."""
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    return 0


def run_each(commands, seconds):
    """Run commands one after the other, each for so many seconds of work; print a line on each.

    It says the exit code and, where lmrc raised the error itself, its type; else where it came
    from.
    """
    errors, print_error = [], cli._print_error

    def note(error, code):
        errors.append(error)
        print_error(error, code)

    cli._print_error = note
    for words in commands:
        errors.clear()
        # No one handles these signals: the process ends. Others may keep the processor busy.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(20 * seconds)
        code = run(words)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(f"{END}{json.dumps([code, *map(origin, errors)])}")
    return 0


def origin(error):
    """Return the type of an error that a line of lmrc raised; else where it came from, too."""
    name, line, _, text = traceback.extract_tb(error.__traceback__)[-1]
    is_own = Path(cli.__file__).parent in Path(name).parents and text.startswith("raise ")
    return type(error).__name__ + ("" if is_own else f" from {name}:{line}: {text}")


def wait(child, reading, job, started):
    """Wait for a job; tell how it ended, what it said and how long it took."""
    if "kill_after" in job:
        time.sleep(job["kill_after"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "said": said, "seconds": time.monotonic() - started}


def warm_up():
    """Learn and ask once: much is imported, for seconds, only when it is needed."""
    with tempfile.TemporaryDirectory() as place:
        for name in "ab":
            Path(place, "week", name).mkdir(parents=True)
            Image.new("L", (4, 4), ord(name)).save(Path(place, "week", name, "0.png"))
        model, week = f"{place}/m", f"{place}/week"
        assert run(["learn", model, week, "-q", "--epochs", "1", "--device", "cpu"]) == 0
        assert run(["predict", model, week]) == 0
    gc.freeze()  # what is here now is never looked at again, nor copied


if __name__ == "__main__":
    typer.main.get_command = cache(typer.main.get_command)  # takes longer than most commands
    classifiers.STEPS = int(sys.argv[1])
    usage.PROGRESS_EVERY = float("inf")  # a busy machine is slow
    said = sys.stdout
    sys.stdout = sys.stderr = io.StringIO()
    warm_up()
    sys.stdout, sys.stderr = said, sys.__stderr__
    for line in sys.stdin:
        number, jobs = json.loads(line)
        for job in jobs:
            for need in (*job.get("words", [])[:1], *job.get("needs", ())):
                for name in NEEDS.get(need, [need] if "." in need else []):
                    import_module(name)
        started = time.monotonic()
        running = [(*start(job), job) for job in jobs]
        print(json.dumps([number, [wait(*job, started) for job in running]]), flush=True)
