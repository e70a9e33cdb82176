from dataclasses import replace

import pytest

from lmrc.data.datasets import digits
from lmrc.experiments.capacity import load_capacity_recipe
from lmrc.experiments.inputs import open_stream
from lmrc.experiments.options import UsageError
from lmrc.experiments.paper import paper_values
from lmrc.experiments.recipe import EXPERIMENTS, load_recipe
from lmrc.experiments.reproduce import default_folder
from lmrc.experiments.runs import check_settings, plan, settings_of
from lmrc.methods.declared import switched_off
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.lmrc_plus import LMRCPlusClassifier
from lmrc.training.loop import halving


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e != "capacity"])
@pytest.mark.parametrize("dataset", ["digits", "mnist", "cifar100", "imagenet200", "folder:x"])
def test_every_experiment_has_a_recipe_for_every_data_set(experiment, dataset):
    recipe = load_recipe(experiment, dataset)
    assert recipe.methods
    assert recipe.settings["epochs"] >= 1
    assert recipe.metric == (
        "top5" if dataset == "imagenet200" and not recipe.classes else "accuracy"
    )


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e != "capacity"])
def test_a_question_needs_no_context(experiment):
    """Its page shows none of the others that it could go on from."""
    assert not load_recipe(experiment).question.startswith(("As ", "But ", "Like ", "Now "))


def own_settings_of_lmrc_plus():
    """Return the defaults that LMRC has not, and ``augment="auto"``, which a recipe changes."""
    plus = LMRCPlusClassifier().get_params()
    paper = LMRCClassifier().get_params()
    return {n: v for n, v in plus.items() if n not in paper or v != paper[n]} | {"augment": "auto"}


@pytest.mark.parametrize("dataset", ["cifar100", "imagenet200", "folder:x"])
@pytest.mark.parametrize("experiment", ["incremental", "rehearsal"])
def test_lmrc_plus_runs_on_images_with_its_own_settings(experiment, dataset):
    own = own_settings_of_lmrc_plus() | {"threshold": 0.15}
    if dataset == "folder:x":  # from scratch, as the methods that it is compared with
        own["freeze"] = False
    recipe = load_recipe(experiment, dataset, methods=["lmrc+"])
    found = settings_of(recipe, plan(recipe)[0])
    assert {name: found[name] for name in own} == own
    chosen = {"augment": "crop+flip", "threshold": 0.1, "rotations": "one"}
    recipe = load_recipe(experiment, dataset, methods=["lmrc+"], settings=chosen)
    found = settings_of(recipe, plan(recipe)[0])
    assert {name: found[name] for name in own} == own | chosen


@pytest.mark.parametrize("dataset", ["digits", "cifar100", "imagenet200"])
def test_with_fewer_epochs_the_rate_is_halved_as_many_times(dataset):
    def rates(epochs=None, **changes):
        settings = load_recipe("incremental", dataset, epochs=epochs, **changes).settings
        return {halving(at, settings["epochs"], settings["halve_at"]) for at in range(epochs or 80)}

    assert rates(30) == rates()
    assert rates(30, settings={"halve_at": [40]}) == {1.0}  # as it was asked for
    # Those who name the recipe's own number go on with what they have.
    usual = load_recipe("incremental", dataset)
    again = load_recipe("incremental", dataset, epochs=usual.settings["epochs"])
    assert again.settings == usual.settings


def test_the_rows_from_lmrc_to_lmrc_plus_add_up():
    recipe = load_recipe("ablation", "cifar100")
    runs = plan(replace(recipe, seeds=1))
    assert list(dict.fromkeys(row["method"] for row in recipe.rows)) == [r.title for r in runs]
    off = LMRCPlusClassifier().get_params() | switched_off()
    before, *later = [off | settings_of(recipe, run) for run in runs]
    assert (before["response_weight"], before["schedule"], before["epochs"]) == (1, "halving", 30)
    steps = []
    for parameters in later:
        steps.append({name for name in parameters if parameters[name] != before[name]})
        before = parameters
    kept = {"response_weight", "statistics", "predict_with"}
    assert steps[:4] == [{"schedule"}, {"rotations", "classifier"}, {"objective"}, kept]
    assert steps[4] == {"first_epochs", "learning_rate", "first_learning_rate"}
    more = {"objective", "feature_layers", "test_time_flip", "augment", "strong_augment"}
    more |= {"join_rotations", "keep_encoders"}
    # These have no effect: there are no exemplars, and "auto" is what was chosen before.
    assert steps[5] == more | {"exemplar_repeats", "rotations", "predict_with", "freeze"}


@pytest.mark.parametrize("dataset", ["cifar100", "imagenet200"])
def test_rotations_are_compared_at_thirty_epochs(dataset):
    recipe = load_recipe("rotations", dataset)
    assert {recipe.settings_of(method)["epochs"] for method in recipe.methods} == {30}


@pytest.mark.parametrize("dataset", ["digits", "mnist", "cifar100"])
@pytest.mark.parametrize("experiment", ["incremental", "softmax-suppression", "rotations"])
def test_a_users_choice_is_for_the_first_task_too(experiment, dataset):
    chosen = {"learning_rate": 0.003, "epochs": 3}
    recipe = load_recipe(experiment, dataset, settings=chosen, methods=["lmrc+"])
    found = settings_of(recipe, plan(recipe)[0])
    assert (found["first_learning_rate"], found["first_epochs"]) == (0.003, 3)


def test_a_users_choice_is_for_the_first_task_of_each_row_of_the_ablation():
    chosen = {"learning_rate": 0.003, "epochs": 3}
    for recipe in (
        load_recipe("ablation", "cifar100", seeds=1, **chosen),
        load_recipe("ablation", "cifar100", seeds=1, settings=chosen),
    ):
        for run in plan(recipe):
            found = settings_of(recipe, run)
            assert found["epochs"] == 3
            assert found["learning_rate"] == 0.003
            assert found["first_epochs"] in (None, 3), run.title
            assert found["first_learning_rate"] in (None, 0.003), run.title
    shorter = load_recipe("ablation", "cifar100", seeds=1, settings={"first_epochs": 5})
    assert {settings_of(shorter, run)["first_epochs"] for run in plan(shorter)} == {5}


def test_a_user_cannot_change_the_settings_that_define_a_variant():
    recipe = load_recipe("rotations", "cifar100", settings={"rotations": "all", "scale": 4.0})
    found = [settings_of(recipe, run) for run in plan(replace(recipe, seeds=1))]
    assert [settings["rotations"] for settings in found] == ["none", "one", "all"]
    assert {settings["classifier"] for settings in found} == {"LMRCPlusClassifier"}
    own = recipe.settings_of("lmrc+")["response_weight"]  # what holds for lmrc+ holds for these
    assert {(settings["response_weight"], settings["scale"]) for settings in found} == {(own, 4.0)}
    with pytest.raises(UsageError, match="none of no-rotations, one-rotation, all-rotations takes"):
        check_settings(recipe, plan(recipe), ["rotations"])


def test_an_unknown_variant_is_refused_with_a_list_of_those_known():
    with pytest.raises(ValueError, match=r"'turn' is not known.* cosine, rotations, softmax, sta"):
        plan(load_recipe("ablation", "digits", methods=["turn"]))


@pytest.mark.parametrize("experiment", ["incremental", "rehearsal", "softmax-suppression"])
@pytest.mark.parametrize("dataset", ["digits", "mnist"])
def test_digits_are_not_rotated(experiment, dataset):
    assert load_recipe(experiment, dataset).settings_of("lmrc+")["rotations"] == "none"


def test_softmax_suppression_has_the_papers_network():
    recipe = load_recipe("softmax-suppression")
    assert (recipe.dataset, recipe.order, recipe.classes, recipe.tasks) == (
        "mnist",
        "natural",
        4,
        2,
    )
    assert recipe.settings["backbone"] == "cnn"
    assert load_recipe("softmax-suppression", "cifar100").settings["backbone"] == "cnn"


def test_consolidation_and_heads_have_the_settings_of_incremental():
    for dataset in ("digits", "cifar100", "imagenet200"):
        theirs = load_recipe("incremental", dataset)
        for reader in ("consolidation", "heads"):
            ours = load_recipe(reader, dataset)
            assert ours.settings == theirs.settings
            assert (ours.tasks, ours.order) == (theirs.tasks, theirs.order)
            assert set(ours.methods) <= set(theirs.methods)


def test_a_network_without_normalisation_has_a_lower_learning_rate():
    assert load_recipe("rehearsal", "cifar100").settings["learning_rate"] == 0.05
    small = load_recipe("rehearsal", "cifar100", backbone="cnn")
    assert small.settings["learning_rate"] == 0.01
    assert small.settings["momentum"] == 0.9
    chosen = {"backbone": "cnn", "settings": {"learning_rate": 0.02}}
    assert load_recipe("rehearsal", "cifar100", **chosen).settings["learning_rate"] == 0.02


def test_an_unknown_experiment_is_refused_with_a_list_of_those_known():
    for name in ("paper", "fig3"):
        with pytest.raises(ValueError, match=f"'{name}' is not known: use one of softmax-supp"):
            load_recipe(name, "digits")


def test_capacity_takes_no_data_set():
    assert load_capacity_recipe(seeds=2, limit=None).seeds == 2
    assert default_folder("capacity").name == "capacity"
    assert default_folder("softmax-suppression").name == "softmax-suppression-mnist"
    with pytest.raises(ValueError, match="takes no data set"):
        load_recipe("capacity")


def test_table_1_as_printed():
    printed = paper_values(load_recipe("rehearsal", "cifar100"))
    assert printed["LMRC + 20 per class"] == 0.497
    assert printed["LwF.MC + 100 per class"] == 0.607
    assert len(printed) == 12
    assert sum(paper_values(load_recipe("rehearsal", "imagenet200")).values()) == pytest.approx(
        7.964
    )


def test_the_paper_has_no_number_for_other_data_or_another_metric():
    assert paper_values(load_recipe("incremental", "imagenet200")) == {"LMRC": 0.664}
    assert paper_values(load_recipe("incremental", "imagenet200", metric="accuracy")) == {}
    assert paper_values(load_recipe("rehearsal", "digits")) == {}


@pytest.mark.parametrize(
    "change",
    [
        *({"limit": 50}, {"validate": 0.1}, {"epochs": 2}, {"backbone": "cnn"}, {"tasks": 5}),
        *({"first_classes": 10}, {"blurry": 0.1}, {"order": [[1, 2], [2, 3]]}),
    ],
)
def test_the_papers_numbers_are_not_shown_beside_other_settings(change):
    assert paper_values(load_recipe("rehearsal", "cifar100", **change)) == {}
    assert paper_values(load_recipe("rehearsal", "cifar100", seeds=1, order="natural"))


def test_settings_that_the_paper_leaves_open_may_be_chosen():
    chosen = load_recipe("rehearsal", "cifar100", settings={"response_weight": 3})
    assert chosen.settings["response_weight"] == 3
    assert chosen.settings["epochs"] == 70
    assert paper_values(chosen)


OWN = """
from lmrc import EWCClassifier, LMRCClassifier, LMRCPlusClassifier
from lmrc.methods.parameters import parameter

class Keeping(LMRCClassifier):
    "With defaults of its own."
    memory_per_class = parameter(default=10)
    epochs = parameter(default=9)
    first_epochs = parameter(default=11)

class Plus(LMRCPlusClassifier):
    "As it is."

class Held(EWCClassifier):
    "As it is."

class Plain(LMRCClassifier):
    "As it is."
"""


@pytest.mark.parametrize("changes", [{}, {"epochs": 2}, {"response_weight": 7.0}])
@pytest.mark.parametrize("dataset", ["digits", "cifar100"])
@pytest.mark.parametrize("experiment", ["incremental", "rehearsal"])
def test_a_subclass_without_changes_has_the_settings_of_its_base(
    experiment, dataset, changes, tmp_path, monkeypatch
):
    (tmp_path / "derived.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    methods = ["lmrc+", "derived.Plus", "ewc", "derived.Held", "lmrc", "derived:Plain"]
    recipe = load_recipe(experiment, dataset, methods=methods, seeds=1, memory=[0], **changes)
    found = [settings_of(recipe, run) for run in plan(recipe)]
    for settings in found:
        del settings["classifier"]
    assert found[::2] == found[1::2]


def test_defaults_of_a_custom_class_override_the_recipe_but_not_the_user(tmp_path, monkeypatch):
    (tmp_path / "derived.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    methods = {"methods": ["derived.Keeping", "lmrc"], "seeds": 1}

    def found(**changes):
        recipe = load_recipe("incremental", "cifar100", **methods, **changes)
        return [settings_of(recipe, run) for run in plan(recipe)]

    keeping, lmrc = found()
    assert (keeping["epochs"], keeping["first_epochs"], lmrc["epochs"]) == (9, 11, 70)
    assert keeping["response_weight"] == lmrc["response_weight"] == 5
    for changes in ({"epochs": 3}, {"settings": {"epochs": 3}}):
        keeping, lmrc = found(**changes)
        assert keeping["epochs"] == keeping["first_epochs"] == lmrc["epochs"] == 3


def test_exemplar_free_runs_override_the_default_memory_of_a_class(tmp_path, monkeypatch):
    (tmp_path / "derived.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for experiment, pools in (("incremental", [0]), ("rehearsal", [2, 5, 10])):
        recipe = load_recipe(experiment, "digits", methods=["derived.Keeping"], seeds=1)
        assert [settings_of(recipe, run)["memory_per_class"] for run in plan(recipe)] == pools


def test_methods_that_are_no_row_or_store_no_exemplars_are_refused_before_training():
    recipe = load_recipe("ablation", "digits", methods=["lmrc", "finetune"])
    with pytest.raises(UsageError, match="finetune is no row of ablation"):
        check_settings(recipe, plan(recipe), [])
    naive = "sklearn.naive_bayes.GaussianNB"
    pooled = load_recipe("rehearsal", "digits", methods=["lmrc", naive], memory=[2])
    with pytest.raises(UsageError, match=f"{naive} stores no exemplars"):
        check_settings(pooled, plan(pooled), [])


@pytest.mark.parametrize(("order", "orders"), [("per-seed", 5), ("natural", 1), (3, 1)])
@pytest.mark.parametrize("experiment", ["incremental", "softmax-suppression"])
def test_the_order_of_classes_is_per_seed_or_common(experiment, order, orders):
    recipe, data = load_recipe(experiment, "digits", order=order), digits()
    streams = [open_stream(recipe, seed, data).order.tolist() for seed in range(5)]
    assert len({tuple(stream) for stream in streams}) == orders
    assert open_stream(recipe, 4, data).order.tolist() == streams[4]
