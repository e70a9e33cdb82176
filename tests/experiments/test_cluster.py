"""Runs on a Ray cluster of two nodes, one of which is lost: the records do not show it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 300  # seconds that a slow machine may take for what usually takes thirty

#: A method of a user's own that waits in its second task until a node is gone.
MODULE = """
import os, time
from pathlib import Path
from lmrc import LMRCClassifier

class WaitingClassifier(LMRCClassifier):
    def losses(self, *args):
        place = Path(os.environ["MEET"])
        (place / f"waiting-{self.random_state}").touch()
        while self.n_tasks_ == 1 and not (place / "gone").exists():
            time.sleep(0.1)
        return super().losses(*args)
"""

SMALL = ["incremental", "--dataset", "digits", "--limit", "10", "--epochs", "1", "--tasks", "3"]
SMALL += ["--methods", "own:WaitingClassifier", "--backbone", "cnn", "--seeds", "2", "--quiet"]


def command(*words):
    return [sys.executable, "-m", "lmrc", "reproduce", *SMALL, *map(str, words)]


def records(folder):
    """What a run measured but for the seconds, run by run."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for line in lines:
        del line["record"]["train_seconds"], line["record"]["test_seconds"]
    return sorted(lines, key=lambda line: (line["seed"], line["record"]["task"]))


def weights(folder):
    """Name the weights of the kept models, which bear their digest."""
    return sorted(str(p.relative_to(folder)) for p in Path(folder).glob("trained/*/weights-*"))


@pytest.fixture
def two_nodes(own_module, tmp_path, monkeypatch):
    """Two nodes of one processor each, beside one of none that the driver talks to."""
    # Before ray is imported, which reads it: a busy machine takes longer than its 5 s.
    monkeypatch.setenv("RAY_gcs_rpc_server_connect_timeout_s", "60")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")
    own_module(MODULE)
    monkeypatch.setenv("MEET", str(tmp_path))
    small = {"object_store_memory": 80 * 2**20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
    yield cluster, nodes
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_records_are_the_same_after_a_lost_node(two_nodes, tmp_path):
    cluster, nodes = two_nodes
    asked = command("--out", "ray", "--keep-models", "--ray", cluster.address)
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while len(list(tmp_path.glob("waiting-*"))) < 2:  # a run on each node
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            cluster.remove_node(nodes[0], allow_graceful=False)
            (tmp_path / "gone").touch()
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    serial = command("--out", "serial", "--keep-models")
    subprocess.run(serial, check=True, timeout=PATIENCE)
    assert records(tmp_path / "ray") == records(tmp_path / "serial")
    assert len(weights("ray")) == 2
    assert weights("ray") == weights("serial")
    assert not Path("ray", "models").exists()


def test_without_ray_installed_the_error_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    from lmrc import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["incremental", "--dataset", "digits", "--limit", "10", "--quiet", "--ray"]
    monkeypatch.setattr(sys, "argv", ["lmrc", "reproduce", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    assert "pip install ray" in capsys.readouterr().err
