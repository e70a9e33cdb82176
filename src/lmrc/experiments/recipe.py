"""Recipes: the settings of an experiment on a data set, with the paper's values."""

import json
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from lmrc.methods.catalog import nearest, own_defaults

#: In the order of the paper; then those beyond it.
EXPERIMENTS = (
    "softmax-suppression",
    "incremental",
    "rehearsal",
    "capacity",
    "consolidation",
    "heads",
    "ablation",
    "rotations",
    "pretrained",
)

RECIPES = resources.files("lmrc.experiments") / "recipes"


@dataclass(frozen=True)
class Recipe:
    """Settings of an experiment: it runs every method with every seed and number of exemplars."""

    experiment: str
    dataset: str
    #: For the report.
    title: str
    question: str
    methods: list[str]  # short names, or dotted paths
    seeds: int  # seeds 0, 1, …
    #: "natural", "per-seed", int, list of labels, or list of lists of labels: order of the classes:
    #: their own, shuffled by the run's seed, or by one seed for all, or as listed; or the classes
    #: of each task, where some may recur.
    order: str | int | list[Any]
    memory: list[int]  # numbers of exemplars per class
    tasks: int  # number of tasks
    metric: str  # "accuracy", "top5": the metric of the paper on this data set
    settings: dict[str, Any]  # parameters of the learners; each takes those that it has
    #: To which the images of a folder are resized; None: as `lmrc.load_dataset` does by default.
    size: int | tuple[int, int] | None = None
    limit: int | None = None  # images per class, all where None
    #: Share of each class's training images that are held out and used as the test set, to choose
    #: settings by; None: the test set.
    validate: float | None = None
    classes: int | None = None  # use only the first classes of the order; all where None
    first_classes: int | None = None  # classes of the first task; the other tasks are equally large
    #: Whether the mean output at each position is recorded after the last task (Fig. 1).
    record_outputs: bool = False
    #: Whether learners get a list of all classes at their first task, as scikit-learn's own need
    #: it.
    announce_classes: bool | None = None
    total: bool | None = None  # whether they are totals over all classes instead
    #: Blurry task boundaries, as in `lmrc.ClassStream`; None: clear ones.
    blurry: float | None = None
    disjoint: float | None = None
    #: Parameters of single methods, by short name, in place of those in `settings`; also for a
    #: method's variants.
    by_method: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Methods with settings of their own, as `lmrc.methods.catalog.find_method` takes them.
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Of the reports of `ablation` and `pretrained`, each with a ``name``, the ``method`` by its
    #: title, and the prediction ``rule``, unless it is the method's own.
    rows: list[dict[str, str]] = field(default_factory=list)

    def settings_of(self, method: str) -> dict[str, Any]:
        """Return the parameters that a method's learner is given."""
        base = method
        if method in self.variants:
            variant = self.variants[method]
            base = variant.get("starts_from", variant["method"])
        above = nearest(base, self.variants)
        return self.settings | self.by_method.get(above, {}) | self.by_method.get(base, {})


def load_recipe(experiment: str, dataset: str | None = None, **changes: Any) -> Recipe:
    """Read the recipe of an experiment on a data set, by default the one that it names.

    Changes that are not None replace its values. ``settings``, and names that are no field of a
    `Recipe`, replace single parameters of the learners.
    """
    read = read_recipe(experiment)
    default = read.pop("dataset", None)
    dataset = dataset or default
    if dataset is None:
        raise ValueError(f"the experiment {experiment!r} takes no data set")
    merged = _merge(read, dataset)
    by_backbone = merged.pop("with", {})
    backbone = changes.get("backbone") or merged["settings"].get("backbone")
    merged = _overlay(merged, {"settings": by_backbone.get(backbone, {})})
    if changes.get("epochs") not in (None, merged["settings"]["epochs"]):
        merged["settings"]["halve_at"] = _as_shares(merged["settings"])
    merged["by_method"] = _with_own_defaults(changes.get("methods") or merged["methods"], merged)
    for name, value in changes.items():
        if value is None:
            continue
        change = (
            {name: value} if name in Recipe.__dataclass_fields__ else {"settings": {name: value}}
        )
        merged = _overlay(merged, change)
        # A user's choice is for all methods, but the settings that define a variant stay.
        for parameter, chosen in change.get("settings", {}).items():
            of_all = [*merged.get("by_method", {}).values()]
            if parameter.removeprefix("first_") in ("epochs", "learning_rate"):
                of_all += merged.get("variants", {}).values()
            for own in of_all:
                own.pop(parameter, None)
                if f"first_{parameter}" in own:  # for the first task, too
                    own[f"first_{parameter}"] = chosen
    if merged.get("disjoint") and not merged.get("blurry"):
        raise ValueError(
            "--disjoint is the share of classes that --blurry leaves out: add --blurry"
        )
    if names_tasks(merged["order"]):
        if changes.get("tasks") or changes.get("first_classes") or merged.get("classes"):
            raise ValueError("the order lists the classes of each task: leave out their number")
        merged["tasks"] = len(merged["order"])
    return Recipe(experiment=experiment, dataset=dataset, **merged)


def names_tasks(order: Any) -> bool:
    """Tell whether an order is a list of the classes of each task."""
    return isinstance(order, list) and isinstance(order[0], list)


def _with_own_defaults(methods: list[str], merged: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings by method, with the defaults of classes that are not built in."""
    by_method, variants = merged.get("by_method", {}), merged.get("variants", {})
    found = dict(by_method)
    for method in methods:
        chosen = by_method.get(nearest(method, variants), {})
        general = {*merged["settings"], *chosen, "first_epochs", "first_learning_rate"}
        defaults = own_defaults(method, variants)
        if own := {n: v for n, v in defaults.items() if n in general and is_plain(v)}:
            found[method] = own
    return found


def is_plain(value: Any) -> bool:
    """Tell whether ``run.json`` can hold a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def read_recipe(experiment: str) -> dict[str, Any]:
    """Read an experiment's TOML file, on top of the one that it extends."""
    file = RECIPES / f"{experiment}.toml"
    if experiment not in EXPERIMENTS or not file.is_file():
        names = ", ".join(EXPERIMENTS)
        raise ValueError(f"the experiment {experiment!r} is not known: use one of {names}")
    recipe = tomllib.loads(file.read_text(encoding="utf-8"))
    if base := recipe.pop("extends", None):
        recipe = _overlay(read_recipe(base), recipe)
    return recipe


def _merge(recipe: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Overlay the experiment's values with the default section, and that with the data set's.

    The section "folder" is for ``folder:PATH``, "npz" for ``npz:PATH``.
    """
    sections = {name: value for name, value in recipe.items() if isinstance(value, dict)}
    common = {name: value for name, value in recipe.items() if name not in sections}
    merged = _overlay(common, sections["default"])
    return _overlay(merged, sections.get(dataset.partition(":")[0], {}))


def _as_shares(settings: dict[str, Any]) -> list[float]:
    """Return `halve_at` as shares of the epochs, which also fit another number of epochs."""
    epochs, milestones = settings["epochs"], settings["halve_at"]
    return [at / epochs if isinstance(at, int) else at for at in milestones]


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = _overlay(result[name], value) if both else value
    return result
