"""Runs on a Ray cluster of two nodes, one of which is lost: the records do not show it."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
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


def weights(folder):
    """Name the weights of the kept models, which bear their digest."""
    return sorted(str(p.relative_to(folder)) for p in Path(folder).glob("trained/*/weights-*"))


@pytest.fixture
def cluster(own_module, tmp_path, monkeypatch):
    """A node of one processor, which the driver talks to, and a second one."""
    # Before ray is imported, which reads them: a busy machine takes longer than its seconds.
    monkeypatch.setenv("RAY_gcs_rpc_server_connect_timeout_s", str(PATIENCE))
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", str(PATIENCE))
    monkeypatch.setenv("RAY_health_check_timeout_ms", str(1000 * PATIENCE))
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")
    monkeypatch.setattr(cluster_utils.Cluster._wait_for_node, "__defaults__", (PATIENCE,))
    own_module(MODULE)
    monkeypatch.setenv("MEET", str(tmp_path))
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    head = {**small, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**small)
    yield cluster
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_records_are_the_same_after_a_lost_node(cluster, tmp_path, run_job, call, records_of):
    words = ["reproduce", *SMALL, "--keep-models", "--out"]
    with ThreadPoolExecutor() as threads:
        job = threads.submit(run_job, *words, "ray", "--ray", cluster.address)
        deadline = time.monotonic() + PATIENCE
        try:
            while len(list(tmp_path.glob("waiting-*"))) < 2:  # a run on each node
                assert not job.done(), job.result()["said"]
                assert time.monotonic() < deadline
                time.sleep(0.1)
            (second,) = cluster.worker_nodes
            cluster.remove_node(second, allow_graceful=False)
        finally:
            (tmp_path / "gone").touch()
    assert job.result()["code"] == 0, job.result()["said"]
    assert call(*words, "serial")[0] == 0
    assert records_of(tmp_path / "ray") == records_of(tmp_path / "serial")
    assert len(weights("ray")) == 2
    assert weights("ray") == weights("serial")
    assert not Path("ray", "models").exists()


def test_without_ray_installed_the_error_says_how_to_install_it(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, errors = call("reproduce", "incremental", "--dataset", "digits", "--quiet", "--ray")
    assert code == 1
    assert "pip install ray" in errors
