import dataclasses
import errno
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings
from markupsafe import Markup

from lmrc import cli
from lmrc.nets.packaged import PACKAGED
from lmrc.practice import usage
from lmrc.store.files import checksum

# Before torch is imported: tests go side by side, and how runs do depends on the threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tree of commands is always the same; to build it takes longer than most commands.
typer.main.get_command = cache(typer.main.get_command)
FEW_STEPS = 5
SLOWLY = 300_000  # milliseconds that a page may take for anything, on a busy machine
# A busy machine is slow, and no test may fail by that.
settings.register_profile(
    "slow", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("slow")
usage.PROGRESS_EVERY = float("inf")


def pytest_addoption(parser):
    group = parser.getgroup("torture")
    group.addoption("--torture", action="store_true", help="Try faults by the thousand.")
    group.addoption("--torture-table", metavar="FILE", help="Write there what was tried.")


def pytest_collection_finish():
    """Save time in all tests.

    Heads are fine-tuned in few steps, unless a test says how many it needs: few tests need good
    ones. What is imported by now, all of torch, is left to no more garbage collections.
    """
    if "torch" in sys.modules:  # else nothing is trained here
        from lmrc.statistics import classifiers

        classifiers.STEPS = FEW_STEPS
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@pytest.fixture(scope="session")
def run_command():
    """Return what runs the command in this process, and returns its exit code."""

    def run(*words):
        heard = signal.getsignal(signal.SIGINT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["lmrc", *words])
            with pytest.raises(SystemExit) as end:
                cli.main()
        signal.signal(signal.SIGINT, heard)
        return end.value.code or 0

    return run


@pytest.fixture
def call(run_command, capsys):
    """Call the command as a shell would; return exit code, output and errors."""

    def run(*words):
        code = run_command(*words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def small_inputs(monkeypatch):
    """Let efficientnet-lite0 take images of 64 pixels a side in place of 224."""
    smaller = dataclasses.replace(PACKAGED["efficientnet-lite0"], size=64)
    monkeypatch.setitem(PACKAGED, "efficientnet-lite0", smaller)


@pytest.fixture
def small_pretrained(monkeypatch):
    """Let efficientnet-lite0 be a smaller network: its first layers, with their weights."""
    import torch

    from lmrc.nets import efficientnet, loading

    published = loading.read_weights("efficientnet-lite0")
    monkeypatch.setattr(efficientnet, "_STAGES", efficientnet._STAGES[:2])
    monkeypatch.setattr(efficientnet, "WIDTH", 64)
    monkeypatch.setattr(efficientnet.EfficientNetLite, "width", 64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = efficientnet.EfficientNetLite("efficientnet-lite0").state_dict()
    small |= {n: t for n, t in published.items() if n in small and t.shape == small[n].shape}
    # Anew for each model, which may train them.
    weights = lambda name: {n: t.clone() for n, t in small.items()}  # noqa: E731
    monkeypatch.setattr(loading, "read_weights", weights)


@pytest.fixture(scope="session")
def onnx_operators():
    """Have torch's exporter list the operators that it knows once, not for each file."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError):  # other versions have it elsewhere
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            listed = cache(ONNXRegistry.from_torchlib)
            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(listed))
        yield


@pytest.fixture(scope="module")
def browser():
    """Chromium, with a webcam that shows a test picture."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no chromium or google-chrome on the path")
    webcam = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *webcam], timeout=SLOWLY
        )
        sync_api.expect.set_options(timeout=SLOWLY)
        new_context = browser.new_context

        def patient_context(**settings):
            context = new_context(**settings)
            context.set_default_timeout(SLOWLY)
            return context

        browser.new_context = patient_context
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def without_drawing():
    """Return a context in which pages have the texts of figures in place of them.

    To draw them takes longer than all the rest.
    """
    from matplotlib.text import Text

    from lmrc.report import figures

    def texts(figure, *, name, description):
        found = [description, *(text.get_text() for text in figure.findobj(Text))]
        return Markup("<svg>{}</svg>").format(" ".join(found))

    @contextmanager
    def patched():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "to_svg", texts)
            patch.setattr(figures, "to_png", lambda _: b"")
            yield

    return patched


@pytest.fixture(scope="module")
def undrawn(without_drawing):
    """Do without figures in all tests of a file."""
    with without_drawing():
        yield


@pytest.fixture(scope="session")
def records_of():
    """Return what reads the records of a folder, sorted, without seconds, day and commit.

    The commit may change while tests run.
    """

    def read(folder):
        lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        for line in lines:
            del line["record"]["train_seconds"], line["record"]["test_seconds"]
            for name in ("commit", "date"):
                line["versions"].pop(name, None)
        return sorted(lines, key=lambda r: (r["method"], r["seed"], r["record"]["task"]))

    return read


@pytest.fixture(scope="session")
def reseal():
    """Return what changes the manifest of a model, and makes its checksum fit."""

    def edit(model, change):
        path = model / "manifest.json"
        manifest = json.loads(path.read_bytes())
        change(manifest)
        manifest["sha256"] = checksum(manifest)
        path.write_text(json.dumps(manifest))

    return edit


@pytest.fixture
def limit_disk(monkeypatch, tmp_path):
    """Return what lets all files under the folder of the test take no more than so many bytes."""
    write = os.write

    def limit(more):
        def used():
            return sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())

        whole = used() + more

        def limited(handle, data):
            if used() + len(data) > whole:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(handle, data)

        monkeypatch.setattr(os, "write", limited)

    return limit


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Return what writes a user's module ``own`` into a new folder, the current one.

    Processes find it through PYTHONPATH; each has one thread.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(tmp_path)
    yield (tmp_path / "own.py").write_text
    sys.modules.pop("own", None)


@pytest.fixture(scope="session")
def run_jobs():
    """Return what runs commands in processes of their own, at once.

    A job has `words` and `place`, and maybe an `environment` or a fault: `kill_after` seconds;
    killed, or sent a `signal`, after `epochs`; at the n-th `step` of writing `how` ("killed",
    "full" from then on, or "watched"); a `limit` to the bytes of a file; `harmless`, without the
    rights of root; `memory` that it may take beyond what it has; `undrawn`, "png" or "all"
    figures. In place of `words` it may have several `commands`, of `seconds` each, or a Python
    `program` with `arguments`. Modules and commands that it `needs` are imported once for all. The
    results have `code`, `said` and `seconds`.
    """
    if not hasattr(os, "fork"):
        pytest.skip("processes cannot be forked here")
    program = Path(__file__).with_name("processes.py")
    with subprocess.Popen(
        [sys.executable, program, str(FEW_STEPS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # One thread and no GPU: what has these cannot be forked.
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    ) as server:
        numbers = itertools.count()

        def run(*jobs):
            number = next(numbers)
            server.stdin.write(json.dumps([number, jobs]) + "\n")
            server.stdin.flush()
            for line in server.stdout:
                received, done = json.loads(line)
                if received == number:  # and not one that a test gave up waiting for
                    return done
            raise ChildProcessError("the process that starts the others has ended")

        yield run
        server.stdin.close()


@pytest.fixture
def run_job(run_jobs):
    """Return what runs one command in a process of its own, in the current folder."""

    def run(*words, **fault):
        what = {"words": words} if words else {}
        (done,) = run_jobs({**what, "place": os.getcwd(), **fault})  # noqa: PTH109
        return done

    return run
