"""Files with a changed structure and valid checksums: they are refused in one line, or work.

Each trial is a process of its own, with 5 s per command and 500 MB of memory beyond its imports.
"""

import copy
import hashlib
import json
import os
import shutil
import signal
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from lmrc.store import files

SEED = 5
END = "\x1e"  # see processes.py
LIMITS = {"seconds": 5, "memory": 500 * 2**20}
PREDICT = ("predict", "m", "week1/a/0.png", "--device", "cpu")
READ = (("info", "m"), ("info", "m", "--json"), ("log", "m"))
CHANGES = (
    ("prune", "m"),
    ("rollback", "m"),
    ("forget", "m", "a"),
    ("rename", "m", "a", "z"),
    ("prune", "m", "--keep", "2"),
    ("forget", "m", "c"),
)
SCRIPT = "<script>forged</script>"

ABSURD = (
    *(None, True, False, -1, 0, 1, 2, 5, 0.5, -0.5, 2**31, 2**63, 10**30, 1e308, float("nan")),
    *(float("inf"), "", "x", "a", "none", "auto", "all", "low-rank", "resnet34", "\udcff", "\0"),
    *("LMRCPlusClassifier", "LMRCClassifier", "EWCClassifier", "<U250000000", "<f8", "|O", SCRIPT),
    *("../../etc/passwd", "/etc/passwd", "\x1b[2J\u202e", "=1+1", [], [[]], {}, {"a": {}}),
    *([2**62] * 3, [0, 1], [1, 8, 8], ["a", "a"], [float("nan")]),
)
HUGE = (
    lambda: "A" * 10**6,
    lambda: "\u202e" * 10**5,
    lambda: 10**4000,
    lambda: -(10**300),
    lambda: [0] * 10**5,
    lambda: [[] for _ in range(10**5)],
    lambda: {str(i): i for i in range(10**4)},
    lambda: nested(0, 300),
)
MAX_DEPTH = 12  # of changes; deeper levels are all alike


def places(value, path=()):
    """Yield the path of each value in a JSON object."""
    if path:
        yield path
    if isinstance(value, (dict, list)) and len(path) < MAX_DEPTH:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


def at(whole, path):
    for key in path:
        whole = whole[key]
    return whole


def change_one(rng, whole):
    """Change a JSON object in one place, in place; return what was done."""
    everywhere = list(places(whole))
    # Each depth has the same probability: most values are deep in lists.
    depth = rng.choice(sorted({len(path) for path in everywhere}))
    of_depth = [path for path in everywhere if len(path) == depth]
    path = of_depth[rng.integers(len(of_depth))]
    other = everywhere[rng.integers(len(everywhere))]
    parent, key = at(whole, path[:-1]), path[-1]
    value = parent[key]
    kind = KINDS[rng.integers(len(KINDS))]
    if kind == "delete":
        del parent[key]
    elif kind == "duplicate" and isinstance(parent, list):
        parent[key:key] = [copy.deepcopy(value)] * int(rng.choice([1, 3, 200]))
    elif kind == "duplicate":
        parent[f"{key}{rng.choice(['', 's', '_', ' '])}x"] = copy.deepcopy(value)
    elif kind == "swap":
        parent[key] = copy.deepcopy(at(whole, other))
    else:
        parent[key] = {
            "replace": lambda: copy.deepcopy(ABSURD[rng.integers(len(ABSURD))]),
            "huge": HUGE[rng.integers(len(HUGE))],
            "nest": lambda: nested(value, int(rng.choice([1, 2, 15, 100]))),
            "retype": lambda: retyped(rng, value),
        }[kind]()
    return f"{kind} {path} {at(whole, path[:-1])!r:.80}"


KINDS = ("replace", "replace", "replace", "delete", "duplicate", "nest", "retype", "huge", "swap")


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


def retyped(rng, value):
    """Return a similar value of another type."""
    if isinstance(value, (dict, list)):
        as_object = {str(i): part for i, part in enumerate(value)}
        return [list(value), as_object, len(value), str(value)][rng.integers(4)]
    if isinstance(value, str):
        return [list(value), {value: value}, len(value), value.encode().hex()][rng.integers(4)]
    number = float(value or 0) if abs(value or 0) < 1e308 else float("inf")
    return [str(value), [value], bool(value), number, {"value": value}][rng.integers(5)]


def changed(rng, whole):
    """Return a JSON object changed in one to three places, and what was done."""
    whole = copy.deepcopy(whole)
    done = [change_one(rng, whole) for _ in range(rng.choice([1, 1, 2, 3])) if whole]
    return whole, "; ".join(done)


def sealed(manifest):
    """Return a manifest with a valid checksum."""
    return json.dumps({**manifest, "sha256": files.checksum(manifest)}).encode()


@pytest.fixture
def try_all(run_jobs, trial, tmp_path):
    """Return a function that runs trials, some in parallel, and calls `check` on each result."""

    def run(kind, tries, check):
        slots = [tmp_path / f"slot{i}" for i in range(os.cpu_count() or 1)]
        tries = iter(tries)
        while group := list(zip(slots, tries, strict=False)):
            jobs = []
            for slot, (prepare, commands, _, more) in group:
                shutil.rmtree(slot, ignore_errors=True)
                slot.mkdir()
                prepare(slot)
                jobs.append({"commands": commands, "place": str(slot), **LIMITS, **more})
            for (slot, (_, commands, what, _)), done in zip(group, run_jobs(*jobs), strict=True):
                with trial(kind, f"seed {SEED}, {what}"):
                    timed_out = done["code"] in (-signal.SIGALRM, -signal.SIGPROF)
                    assert not timed_out, f"a command timed out: {done['said']:.500}"
                    assert done["code"] == 0, done["said"][-2000:]
                    check(slot, outcomes(commands, done["said"]))

    return run


def outcomes(commands, said):
    """Return the exit code of each command, and the type of lmrc's error, if any."""
    found = []
    *told, rest = said.split(END)
    lines = [json.loads(part.partition("\n")[0]) for part in [*told[1:], rest]]
    texts = [told[0], *(part.partition("\n")[2] for part in [*told[1:], rest])]
    for words, text, (code, *errors) in zip(commands, texts, lines, strict=False):
        assert code in (0, 1, 2), (words, text[-500:])
        assert not any(" from " in error for error in errors), (words, errors, text[-500:])
        assert "Traceback" not in text, (words, text)
        assert "--debug" not in text, (words, text)
        if errors:  # one line, by lmrc
            assert text.startswith("lmrc: ") and text.count("\n") == 1, (words, text[:500])  # noqa: PT018
            assert len(text) < 2000, (words, text[:500])
        found.append((code, *errors))
    assert len(found) == len(commands)
    return found


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_model(slot, found):
    """A command that failed has changed nothing; one that succeeded has left a model."""
    *_, (code, *_), last = found
    if code:
        assert contents(slot / "m") == contents(slot / "forged")
    else:
        assert "ModelFileError" not in last, "the model is lost"


def put(slot, place, forge):
    """Create a folder with a forged model and a copy of it to compare with."""
    shutil.copytree(place / "week1", slot / "week1")
    shutil.copytree(place / "2", slot / "m")
    forge(slot / "m")
    shutil.copytree(slot / "m", slot / "forged")


def test_forged_manifests(place, try_all, is_full):
    rng = np.random.default_rng(SEED)
    manifest = json.loads((place / "2" / "manifest.json").read_bytes())

    def tries():
        for change in islice(cycle(CHANGES), 5000 if is_full else 12):
            forged, what = changed(rng, {k: v for k, v in manifest.items() if k != "sha256"})
            text = sealed(forged)

            def prepare(slot, text=text):
                put(slot, place, lambda model: (model / "manifest.json").write_bytes(text))

            read = READ[rng.integers(len(READ))]
            yield prepare, (PREDICT, read, change, PREDICT), f"{read[0]}, {change[0]}: {what}", {}

    try_all("forged manifest with a valid checksum", tries(), check_model)


def test_restructured_tensor_headers(place, try_all, is_full):
    rng = np.random.default_rng(SEED)
    manifest = json.loads((place / "2" / "manifest.json").read_bytes())

    def tries():
        for change in islice(cycle(CHANGES), 1000 if is_full else 6):
            version = int(rng.integers(len(manifest["versions"])))
            entries = manifest["versions"][version]["files"]
            group = sorted(entries)[rng.integers(len(entries))]
            whole = (place / "2" / entries[group]["name"]).read_bytes()
            start = 8 + int.from_bytes(whole[:8], "little")
            header, what = changed(rng, json.loads(whole[8:start]))
            text = json.dumps(header).encode()
            content = len(text).to_bytes(8, "little") + text + whole[start:]
            digest = hashlib.sha256(content).hexdigest()
            name = f"{group}-{digest}.safetensors"
            forged = copy.deepcopy({k: v for k, v in manifest.items() if k != "sha256"})
            entry = {"name": name, "sha256": digest, "bytes": len(content)}
            forged["versions"][version]["files"][group] = entry

            def prepare(slot, name=name, content=content, forged=forged):
                def forge(model):
                    (model / name).write_bytes(content)
                    (model / "manifest.json").write_bytes(sealed(forged))

                put(slot, place, forge)

            what = f"{change[0]}: {group} of version {version}, {what}"
            yield prepare, (PREDICT, READ[0], change, PREDICT), what, {}

    try_all("restructured tensor header with a valid checksum", tries(), check_model)


def test_forged_unfinished_tasks(stages, place, run_job, try_all, is_full):
    rng = np.random.default_rng(SEED)
    stages.go_back(1)
    assert run_job(*stages.learn[1], epochs=1)["code"] == -signal.SIGKILL
    (Path("m") / ".lmrc-lock").unlink()
    kept = json.loads(Path("m/unfinished.json").read_bytes())
    del kept["sha256"]

    def tries():
        for _ in range(500 if is_full else 2):
            forged, what = changed(rng, kept)
            text = sealed(forged)

            def prepare(slot, text=text):
                no_slots = shutil.ignore_patterns("slot*")
                shutil.copytree(place, slot, dirs_exist_ok=True, ignore=no_slots)
                (slot / "m" / "unfinished.json").write_bytes(text)

            resume = ("learn", "m", "--resume", "-q")
            # Forged settings may switch on the compiler, which takes long.
            more = {"seconds": 60, "memory": 4 * 2**30}
            yield prepare, (("info", "m"), ("prune", "m"), resume, PREDICT), what, more

    def check(slot, found):
        assert found[-1] == (0,), "the model is lost"

    try_all("forged state of an unfinished task", tries(), check)
