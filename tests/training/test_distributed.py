"""Two processes that torchrun starts come to what one comes to; only the first of them writes."""

import json
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.distributed import TCPStore

from lmrc import load
from lmrc.data.datasets import digits
from lmrc.statistics import classifiers
from lmrc.training.ranks import Ranks

#: What torchrun --standalone does, but its processes are forked: torch is imported once for all.
TORCHRUN = """
import os, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from lmrc import cli

def work(*words):
    sys.argv = ["lmrc", *words]
    cli.main()

where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test"}
config = LaunchConfig(1, 1, 2, **where, start_method="fork", max_restarts=0)
elastic_launch(config, work)(*os.environ["WORDS"].split())
"""

#: A method of a user's own whose second process dies where a test tells it to.
MODULE = """
import os, signal
from lmrc import LMRCClassifier

class DyingClassifier(LMRCClassifier):
    def losses(self, *args):
        if "DIE" in os.environ and os.environ["RANK"] == "1" and self.n_tasks_ == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses(*args)
"""

#: What one process or two keep of learning: weights, BatchNorm's and LMRC+'s statistics.
PROGRAM = """
import torch
from pathlib import Path
from torch import nn
from lmrc import LMRCPlusClassifier
from lmrc.data.folders import image_files
from lmrc.data.image_files import ImageFiles
from lmrc.data.inputs import Streamed
from lmrc.statistics import classifiers
from lmrc.training.batches import Batches
from lmrc.training.loop import Optimisation, train
from lmrc.training.ranks import process_group

class Bytes(nn.Module):
    def forward(self, x):
        return x.flatten(1) / 255

def trained(x, y, ranks, **how):
    torch.manual_seed(0)
    network = nn.Sequential(Bytes(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    how |= {"n_known": 0, "batch_size": 23, "augment": "none", "device": torch.device("cpu")}
    batches = Batches(x, y, ranks=ranks, **how)
    plan = Optimisation(2, 0.1, (), 0.9, 0.0)
    losses = lambda batch: {"new": (network(batch.x)[:, 0] - batch.y).square()}
    list(train(network, losses, batches, plan, seed=lambda epoch: epoch))
    return network.state_dict()

def learnt(images, streamed):
    model = LMRCPlusClassifier(
        backbone="cnn", epochs=2, first_epochs=2, batch_size=13, memory_per_class=2,
        random_state=0, device="cpu",
    )
    for week, y in images.values():
        model.partial_fit(week if streamed else week.__array__(), y)
    kept = {**model.network_.state_dict(), **model.classifiers_}
    return kept | {"scores": torch.from_numpy(model.similarities(week.__array__()))}

classifiers.STEPS = 5
with process_group() as ranks:
    images = {}
    for week in ("week1", "week2"):
        classes = image_files(Path(week))[0]
        y = torch.tensor([int(name) for name, files in classes.items() for _ in files])
        images[week] = ImageFiles(list(classes.values()), (8, 8), "L"), y
    files, y = images["week1"]
    x = torch.from_numpy(files.__array__())[:, None]
    kept = {"resident": trained(x, y, ranks), "pinned": trained(x, y, ranks, resident=False),
        "streamed": trained(Streamed(files), y, ranks),
        "plus": learnt(images, ranks.is_distributed)}
    torch.save(kept, f"{ranks.size}-{ranks.rank}.pt")
"""

#: 5 × 16 training images in steps of 33: 33, 33 and 14, of which the second has 17, 17 and 7.
SMALL = ["incremental", "--dataset", "digits", "--limit", "16", "--epochs", "3", "--seeds", "1"]
SMALL += ["--backbone", "cnn", "--tasks", "2", "--set", "batch_size=33", "--quiet"]


@pytest.fixture(autouse=True)
def here(own_module):
    own_module(MODULE)


@pytest.fixture
def alone(call):
    """Run the command in this process, which is quicker than another one."""

    def run_here(*words):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        code, _, errors = call(*map(str, words))
        torch.set_num_threads(threads)
        return code, errors

    return run_here


@pytest.fixture
def two(run_jobs, tmp_path):
    """Run two processes as torchrun does, quickly; return their exit codes and what they say."""

    def run(*words, faults=({}, {}), **job):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        group = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
        group |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        group["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the one here
        job |= {"place": str(tmp_path)} | ({"words": [*map(str, words)]} if words else {})
        job["undrawn"] = "all"
        jobs = [
            job | fault | {"environment": group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}}
            for rank, fault in enumerate(faults)
        ]
        done = run_jobs(*jobs)
        return [d["code"] for d in done], "".join(d["said"] for d in done)

    return run


def test_two_processes_measure_what_one_does_though_one_of_them_dies(
    tmp_path, alone, two, run_job, records_of
):
    # EWC has a term that is one number for all; the others have one for each sample.
    command = ["reproduce", *SMALL, "--methods", "ewc", "own:DyingClassifier", "--out"]
    Path("torchrun.py").write_text(TORCHRUN)
    environment = {"DIE": "1", "WORDS": " ".join([*command, "two"])}
    needs = ["reproduce", "torch.distributed.launcher.api"]
    done = run_job(program="torchrun.py", environment=environment, needs=needs, undrawn="all")
    assert done["code"] != 0
    ours = [line for line in done["said"].splitlines() if line.startswith("lmrc: ")]
    assert len(ours) == 1, done["said"]
    assert ours[0].endswith("start it again to resume, learn with --resume")
    left = records_of(tmp_path / "two")
    assert [line["record"]["task"] for line in left] == [0, 1, 0]

    codes, said = two(*command, "two")
    assert codes == [0, 0], said
    assert said.count("Report with figures") == 1
    assert "lmrc: " not in said  # no warning from either
    assert alone(*command, "one")[0] == 0
    one, other = records_of(tmp_path / "one"), records_of(tmp_path / "two")
    assert all(line in other for line in left)  # as they were
    assert [(r["method"], r["record"]["task"]) for r in one] == [
        (r["method"], r["record"]["task"]) for r in other
    ]
    for a, b in zip(one, other, strict=True):
        assert a["settings"] == b["settings"]
        # A sample on the verge may fall to the other side.
        assert a["record"]["accuracy"] == pytest.approx(b["record"]["accuracy"], abs=0.01)
    assert not (tmp_path / "two" / "models").exists()
    line = json.loads((tmp_path / "two" / "records.jsonl").read_text().splitlines()[0])
    assert line["extra"]["execution"]["processes"] == 2


@pytest.fixture
def images(tmp_path):
    """Two folders, of three digits and of two more."""
    data = digits()
    for name, labels in (("week1", (0, 1, 2)), ("week2", (3, 4))):
        for label in labels:
            place = tmp_path / name / str(label)
            place.mkdir(parents=True)
            for i, pixels in enumerate(data.X_train[data.y_train == label][:23]):
                Image.fromarray(pixels).save(place / f"{i}.png")
    return tmp_path


def test_two_processes_learn_what_one_does_though_they_are_terminated(images, alone, two):
    options = ["--epochs", "4", "--backbone", "cnn", "--batch-size", "13", "--quiet"]
    terminated = {"epochs": 2, "signal": signal.SIGTERM}
    codes, said = two(
        *("learn", "two.lmrc", "week1", *options, "--checkpoint-every", "0"),
        faults=(terminated, terminated),
    )
    assert codes == [1, 1], said
    assert "start it again to resume, learn with --resume" in said
    for words in (["--resume", "--quiet"], ["week2", *options]):
        codes, said = two("learn", "two.lmrc", *words)
        assert codes == [0, 0], said

    for week in ("week1", "week2"):
        assert alone("learn", "one.lmrc", week, *options)[0] == 0
    one, other = load(images / "one.lmrc"), load(images / "two.lmrc")
    for a, b in zip(one.history_, other.history_, strict=True):
        assert a == pytest.approx(b, rel=1e-3)
    for name, weight in one.network_.state_dict().items():
        np.testing.assert_allclose(weight, other.network_.state_dict()[name], atol=1e-3)


def test_two_processes_learn_photographs_as_one_does(tmp_path, alone, two):
    rng = np.random.default_rng(0)
    for i, name in enumerate(("red", "green", "blue")):
        (tmp_path / "week1" / name).mkdir(parents=True)
        for j in range(3):
            pixels = rng.integers(0, 90, (64, 64, 3), dtype=np.uint8)
            pixels[..., i] += 150
            Image.fromarray(pixels).save(tmp_path / "week1" / name / f"{j}.png")
    codes, said = two("learn", "two.lmrc", "week1", "--epochs", "2")
    assert codes == [0, 0], said
    assert said.count("photographs: LMRC+ with the pre-trained backbone efficientnet-lite0") == 1
    assert alone("learn", "one.lmrc", "week1", "--epochs", "2", "-q")[0] == 0
    one, other = load(tmp_path / "one.lmrc"), load(tmp_path / "two.lmrc")
    assert one.prediction_rule_ == other.prediction_rule_ == "ridge"
    x = rng.integers(0, 255, (2, 224, 224, 3), dtype=np.uint8)
    np.testing.assert_allclose(one.similarities(x), other.similarities(x), atol=1e-4)


def test_statistics_of_two_processes_are_over_the_shares_of_both(images, monkeypatch, two):
    (images / "program.py").write_text(PROGRAM)
    codes, said = two(program="program.py")
    assert codes == [0, 0], said
    monkeypatch.setattr(classifiers, "STEPS", classifiers.STEPS)
    runpy.run_path("program.py")
    alone, first, second = (
        torch.load(f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1")
    )
    for place in ("resident", "pinned", "streamed"):
        for name, tensor in first[place].items():  # BatchNorm's are those of the first rank
            assert torch.equal(tensor, second[place][name]), (place, name)
            torch.testing.assert_close(tensor, first["resident"][name])
    for name, tensor in alone["plus"].items():
        assert torch.equal(first["plus"][name], second["plus"][name]), name
        near = 1e-3 * max(1.0, float(tensor.abs().max()))  # weights of the discriminant are large
        torch.testing.assert_close(tensor, first["plus"][name], rtol=0, atol=near, msg=name)


def test_what_trains_nothing_is_refused(alone, monkeypatch):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    code, errors = alone("info", "none.lmrc")
    assert code == 1
    assert "torchrun is only for learn and reproduce" in errors


@pytest.mark.parametrize("n", [1, 2, 3, 7, 32, 33])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_are_all_of_a_mini_batch_and_none_is_of_one_sample(n, size):
    ranks = [Ranks(rank, size) for rank in range(size)]
    shares = [list(range(n))[r.shard(n)] for r in ranks if r.has_shard(n)]
    assert [i for share in shares for i in share] == list(range(n))
    assert n == 1 or min(map(len, shares)) > 1
    assert all(list(range(n))[r.shard(n)] for r in ranks)  # those that do not count, too
