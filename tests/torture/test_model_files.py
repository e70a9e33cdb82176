"""Damaged or forged model files: a ModelFileError, or the right predictions."""

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import lmrc
from lmrc.practice import info
from lmrc.store import folder, unfinished
from lmrc.store.folder import ModelFileError

SEED = 2
COMMANDS = (
    ("predict", "m", "week1", "--device", "cpu"),
    ("info", "m"),
    ("log", "m"),
    ("rollback", "m"),
    ("prune", "m"),
    ("rename", "m", "a", "z"),
    ("forget", "m", "a"),
    ("learn", "m", "week2", "--discard", "-q"),
    ("learn", "m", "--resume", "-q"),
)


@pytest.fixture
def model(stages, run_job):
    """A model with every kind of file: two versions, exemplars, and an unfinished task."""
    assert run_job(*stages.learn[1], epochs=1)["code"] == -9
    (Path("m") / ".lmrc-lock").unlink()
    shutil.copytree("m", "whole")
    return Path("m")


def restore():
    shutil.rmtree("m", ignore_errors=True)
    shutil.copytree("whole", "m")


def damage(rng, content):
    """Return a damaged copy of a file, and what was done to it."""
    size, damaged = len(content), bytearray(content)
    at, kind = int(rng.integers(size)), int(rng.integers(7))
    if kind < 3:
        damaged[at] ^= 1 << int(rng.integers(8))
        return damaged, f"bit at {at} flipped"
    if kind < 5:
        return damaged[:at], f"cut to {at} bytes"
    if kind == 5:
        end = at + int(rng.integers(1, 600))
        damaged[at:end] = bytes(len(damaged[at:end]))
        return damaged, f"zeros from {at}"
    return damaged + rng.bytes(8), "8 bytes longer"


def read_all(outputs):
    """Read the model, its versions and the unfinished task; None for what raises ModelFileError."""
    found = []
    for read in (outputs, lambda: folder.versions(Path("m")), lambda: _unfinished()):
        try:
            found.append(read())
        except ModelFileError:
            found.append(None)
    return found


def _unfinished():
    content, tensors = unfinished.read(Path("m"))
    return content, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def test_damaged_files(model, outputs, trial, is_full):
    rng = np.random.default_rng(SEED)
    right = read_all(outputs)
    assert None not in right
    of_kind = {path.name.partition("-")[0]: path for path in sorted(model.iterdir())}
    assert of_kind.keys() == {
        *("manifest.json", "unfinished.json", "labels", "exemplars", "training", "weights")
    }
    for i in range(10_000 if is_full else 200):
        path = list(of_kind.values())[i % len(of_kind)]
        content = path.read_bytes()
        damaged, what = damage(rng, content)
        path.write_bytes(damaged)
        with trial("truncated or bit-flipped model file", f"seed {SEED}, {path.name} {what}"):
            for found, known in zip(read_all(outputs), right, strict=True):
                assert found is None or found == known, "wrong, without an error"
        path.write_bytes(content)


def test_commands_on_damaged_files(model, outputs, run_job, trial, is_full):
    rng = np.random.default_rng(SEED)
    for number, words in enumerate(COMMANDS):
        for i in range(40 if is_full else 2):
            restore()
            if "--resume" not in words:
                unfinished.discard(model)  # otherwise that would be the error
            whole = {p.name: p.read_bytes() for p in model.iterdir()}
            path = model / sorted(whole)[(i + 2 * number) % len(whole)]
            damaged, what = damage(rng, whole[path.name])
            path.write_bytes(damaged)
            with trial("command on a damaged model", f"{' '.join(words)}: {path.name} {what}"):
                done = run_job(*words)
                assert done["code"] in (0, 1), done["said"]
                assert "Traceback" not in done["said"]
                assert "--debug" not in done["said"], done["said"]
                if done["code"]:  # then nothing is lost: restoring the file restores the model
                    assert whole.keys() <= {p.name for p in model.iterdir()}
                    path.write_bytes(whole[path.name])
                    assert all((model / name).read_bytes() == whole[name] for name in whole)
                elif path.exists() and path.read_bytes() == damaged:
                    path.write_bytes(whole[path.name])  # it was not needed
                assert outputs()


def replace_weights(content, reseal):
    """Replace the weights by other bytes, with valid checksums."""
    digest = hashlib.sha256(content).hexdigest()
    name = f"weights-{digest}.safetensors"
    Path("m", name).write_bytes(content)

    def enter(manifest):
        entry = {"name": name, "sha256": digest, "bytes": len(content)}
        manifest["versions"][-1]["files"]["weights"] = entry

    reseal(Path("m"), enter)


def read_forged(fault, trial, what):
    """Check that a forged model is refused, or predicts."""
    with trial(fault, what):
        try:
            model = lmrc.load("m", device="cpu")
        except ModelFileError:
            pass
        else:
            shape = model.input_shape_
            X = np.zeros((2, *shape[1:], shape[0]) if shape[1:] else (2, *shape))
            predicted = model.predict(X).tolist()
            assert len(predicted) == 2
            assert set(predicted) <= set(model.classes_.tolist())
        for read in (info.describe, info.history, lambda path: info.print_log(path, str)):
            try:
                described = read(Path("m"))
            except ModelFileError:
                continue
            json.dumps(described)  # as --json prints it


def with_header(content, header):
    """Return a safetensors file with another header before the same tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (
        len(text).to_bytes(8, "little")
        + text
        + content[8 + int.from_bytes(content[:8], "little") :]
    )


def test_forged_tensor_headers(model, trial, is_full, reseal):
    rng = np.random.default_rng(SEED)
    manifest = (model / "manifest.json").read_bytes()
    weights = (
        model / json.loads(manifest)["versions"][-1]["files"]["weights"]["name"]
    ).read_bytes()
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    name, entry = next((n, e) for n, e in header.items() if n == "head.weight")
    lengths = (0, 1, length - 1, 2**40, 2**63, 2**64 - 1)
    forged = [
        *(n.to_bytes(8, "little") + weights[8:] for n in lengths),
        b"",
        weights[:8],
        with_header(weights, b" " * 10**6),
        with_header(weights, b"[" * 10**5),
        with_header(weights, {}),
    ]
    for key, value in (
        ("shape", [2**40, 2**40]),
        ("shape", [2**64]),
        ("shape", [-1]),
        ("shape", []),
        ("shape", [0, 2**40]),
        ("dtype", "F64"),
        ("dtype", "PICKLE"),
        ("data_offsets", [0, 2**60]),
        ("data_offsets", [2**63, 0]),
        ("data_offsets", [0, 8]),
    ):
        forged.append(with_header(weights, {**header, name: {**entry, key: value}}))
    for _ in range(1500 if is_full else 60):  # arbitrary bytes
        changed = bytearray(weights)
        for at in rng.integers(0, 8 + length, int(rng.integers(1, 4))):
            changed[at] = int(rng.integers(256))
        forged.append(bytes(changed))
    for i, content in enumerate(forged):
        replace_weights(content, reseal)
        read_forged("forged tensor header with a valid checksum", trial, f"number {i}")
        for path in model.glob("weights-*"):
            if not (Path("whole") / path.name).exists():
                path.unlink()
        (model / "manifest.json").write_bytes(manifest)


def test_paths_that_lead_out_of_the_model(model, run_job, trial, is_full, reseal):
    outside = Path("outside.txt")
    weights = json.loads((model / "manifest.json").read_bytes())["versions"][-1]["files"]["weights"]

    def named(name):
        def change(manifest):
            manifest["versions"][-1]["files"]["weights"]["name"] = name

        return lambda: reseal(model, change)

    def link(name):
        def change():
            (model / name).unlink(missing_ok=True)
            (model / name).symlink_to(outside.absolute())

        return change

    tricks = {
        "name with ..": named(f"../whole/{weights['name']}"),
        "absolute name": named(str((Path("whole") / weights["name"]).absolute())),
        "name with a zero byte": named("weights\0"),
        "link for a lock": link(".lmrc-lock"),
        "link for a draft": link(".lmrc-00"),
        "link for weights": link(weights["name"]),
        "link for the manifest": link("manifest.json"),
        "link for the unfinished task": link("unfinished.json"),
        "link for an old file": link(f"pool-{'0' * 64}.safetensors"),
    }
    for i, (name, play) in enumerate(tricks.items()):
        for words in COMMANDS if is_full else COMMANDS[i % 3 :: 3]:
            restore()
            outside.write_text("do not lose")
            play()
            with trial("path that leads out of the model", f"{name}, {' '.join(words)}"):
                done = run_job(*words)
                assert done["code"] in (0, 1, 2), done["said"]
                assert "--debug" not in done["said"], done["said"]
                assert outside.read_text() == "do not lose"


def test_archives(place, run_job, trial, is_full):
    rng = np.random.default_rng(SEED)
    np.savez_compressed(
        "good.npz", X=rng.integers(0, 256, (8, 6, 6), dtype=np.uint8), y=np.arange(8) % 2
    )
    good = Path("good.npz").read_bytes()

    def npz(name, **members):
        with zipfile.ZipFile(name, "w") as archive:
            for member, content in members.items():
                archive.writestr(member.replace("_", "/") + ".npy", content)

    def header(shape, descr="|u1"):
        text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()

    whole = header("(4,)") + bytes(4)
    npz("outside.npz", X=header("(4, 6, 6)") + bytes(144), y=whole, **{".._.._evil": whole})
    npz("absurd.npz", X=header("(1000000000000, 6, 6)"), y=whole)
    npz("overflow.npz", X=header(f"({2**62}, {2**62})"), y=whole)
    npz("negative.npz", X=header("(-4, 6)") + bytes(24), y=whole)
    npz("objects.npz", X=header("(4, 6)", "|O") + b"cos\nsystem\n(S'touch evil'\ntR.", y=whole)
    npz("code.npz", X=header("__import__('os').system('touch evil')"), y=whole)
    for i in range(200 if is_full else 4):
        damaged, _ = damage(rng, good)
        Path(f"damaged{i}.npz").write_bytes(damaged)
    before = sorted(p.name for p in place.parent.iterdir())
    for path in sorted(place.glob("*.npz")):
        with trial("forged or damaged archive", path.name):
            done = run_job("learn", "n", path.name, "-q", "--epochs", "1", "--device", "cpu")
            assert done["code"] in (0, 1), done["said"]
            assert "--debug" not in done["said"], done["said"]
            assert done["code"] == 0 or not Path("n").exists()
            assert not Path("evil").exists()
            assert sorted(p.name for p in place.parent.iterdir()) == before
        shutil.rmtree("n", ignore_errors=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_and_folders_in_place_of_files(model, run_job, trial, is_full):
    for i, name in enumerate(sorted(p.name for p in model.iterdir())):
        for kind, make in (("pipe", os.mkfifo), ("folder", Path.mkdir)):
            restore()
            (model / name).unlink()
            make(model / name)
            with trial("pipe or folder in place of a model file", f"{kind} {name}"):
                for words in COMMANDS if is_full else COMMANDS[i % 6 :: 6]:
                    done = run_job(*words)
                    assert done["code"] in (0, 1, 2), done["said"]
                    assert "--debug" not in done["said"], done["said"]
