"""Class-incremental learning without exemplars, as scikit-learn estimators on PyTorch.

`LMRCClassifier` is Label Mapping with Response Consolidation (Zhang et al., 2019,
arXiv:1905.07835); `LMRCPlusClassifier` goes beyond the paper. Names are imported on first use, so
``import lmrc`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmrc import checks as checks
    from lmrc.data.datasets import Dataset as Dataset
    from lmrc.data.datasets import load_dataset as load_dataset
    from lmrc.data.stream import ClassStream as ClassStream
    from lmrc.evaluation.run import evaluate as evaluate
    from lmrc.evaluation.run import summarize as summarize
    from lmrc.labels import capacity as capacity
    from lmrc.labels.errors import CapacityError as CapacityError
    from lmrc.labels.errors import CapacityWarning as CapacityWarning
    from lmrc.labels.mapping import LabelMapping as LabelMapping
    from lmrc.methods.base import IncrementalClassifier as IncrementalClassifier
    from lmrc.methods.ewc import EWCClassifier as EWCClassifier
    from lmrc.methods.finetune import FineTuneClassifier as FineTuneClassifier
    from lmrc.methods.joint import JointClassifier as JointClassifier
    from lmrc.methods.lmrc import LMRCClassifier as LMRCClassifier
    from lmrc.methods.lmrc_plus import LMRCPlusClassifier as LMRCPlusClassifier
    from lmrc.methods.lwf import LwFClassifier as LwFClassifier
    from lmrc.methods.persistence import load as load
    from lmrc.store.folder import ModelFileError as ModelFileError
    from lmrc.training.loop import TrainingError as TrainingError

__version__ = "0.1.0"

_HOME = {
    "CapacityError": "labels.errors",
    "CapacityWarning": "labels.errors",
    "ClassStream": "data.stream",
    "Dataset": "data.datasets",
    "EWCClassifier": "methods.ewc",
    "FineTuneClassifier": "methods.finetune",
    "IncrementalClassifier": "methods.base",
    "JointClassifier": "methods.joint",
    "LMRCClassifier": "methods.lmrc",
    "LMRCPlusClassifier": "methods.lmrc_plus",
    "LabelMapping": "labels.mapping",
    "LwFClassifier": "methods.lwf",
    "ModelFileError": "store.folder",
    "TrainingError": "training.loop",
    "capacity": "labels.capacity",
    "checks": "checks",
    "evaluate": "evaluation.run",
    "load": "methods.persistence",
    "load_dataset": "data.datasets",
    "summarize": "evaluation.run",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lmrc' has no attribute {name!r}")
    home = _HOME[name]
    module = import_module(f"lmrc.{home}")
    return module if home.rpartition(".")[2] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
