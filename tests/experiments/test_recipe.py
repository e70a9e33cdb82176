import pytest

from lmrc.experiments.capacity import load_capacity_recipe
from lmrc.experiments.paper import paper_values
from lmrc.experiments.recipe import EXPERIMENTS, load_recipe
from lmrc.experiments.reproduce import default_folder


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e != "capacity"])
@pytest.mark.parametrize("dataset", ["digits", "mnist", "cifar100", "imagenet200", "folder:x"])
def test_every_experiment_has_a_recipe_for_every_data_set(experiment, dataset):
    recipe = load_recipe(experiment, dataset)
    assert recipe.methods
    assert recipe.settings["epochs"] >= 1
    assert recipe.metric == (
        "top5" if dataset == "imagenet200" and not recipe.classes else "accuracy"
    )


def test_lmrc_plus_keeps_its_own_settings_unless_a_user_chooses():
    recipe = load_recipe("incremental", "cifar100")
    assert recipe.settings_of("lmrc")["response_weight"] == 5
    assert recipe.settings_of("lmrc+")["response_weight"] == 3
    chosen = load_recipe("incremental", "cifar100", settings={"response_weight": 7.0}, epochs=2)
    for method in ("lmrc", "lmrc+"):
        assert chosen.settings_of(method)["response_weight"] == 7
        assert chosen.settings_of(method)["epochs"] == 2
    again = load_recipe("incremental", "cifar100")
    assert again == recipe


@pytest.mark.parametrize("experiment", ["incremental", "rehearsal", "softmax-suppression"])
@pytest.mark.parametrize("dataset", ["digits", "mnist"])
def test_digits_are_not_turned(experiment, dataset):
    assert load_recipe(experiment, dataset).settings_of("lmrc+")["rotations"] == "none"


def test_the_probe_is_the_papers():
    recipe = load_recipe("softmax-suppression")
    assert (recipe.dataset, recipe.order, recipe.classes, recipe.batches) == (
        "mnist",
        "natural",
        4,
        2,
    )
    assert recipe.settings["backbone"] == "cnn"
    assert load_recipe("softmax-suppression", "cifar100").settings["backbone"] == "cnn"


def test_what_reads_incremental_has_its_settings():
    for dataset in ("digits", "cifar100", "imagenet200"):
        theirs = load_recipe("incremental", dataset)
        for reader in ("consolidation", "heads"):
            ours = load_recipe(reader, dataset)
            assert ours.settings == theirs.settings
            assert (ours.batches, ours.order) == (theirs.batches, theirs.order)
            assert set(ours.methods) <= set(theirs.methods)


def test_a_network_without_normalisation_takes_smaller_steps():
    assert load_recipe("rehearsal", "cifar100").settings["learning_rate"] == 0.05
    small = load_recipe("rehearsal", "cifar100", backbone="cnn")
    assert small.settings["learning_rate"] == 0.01
    assert small.settings["momentum"] == 0.9
    chosen = {"backbone": "cnn", "settings": {"learning_rate": 0.02}}
    assert load_recipe("rehearsal", "cifar100", **chosen).settings["learning_rate"] == 0.02


def test_an_unknown_experiment_is_named_with_those_that_there_are():
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
    [{"limit": 50}, {"validate": 0.1}, {"epochs": 2}, {"backbone": "cnn"}, {"batches": 5}],
)
def test_the_papers_numbers_do_not_stand_beside_another_setting(change):
    assert paper_values(load_recipe("rehearsal", "cifar100", **change)) == {}
    assert paper_values(load_recipe("rehearsal", "cifar100", seeds=1, order="natural"))


def test_what_the_paper_leaves_open_may_be_chosen():
    chosen = load_recipe("rehearsal", "cifar100", settings={"response_weight": 3})
    assert chosen.settings["response_weight"] == 3
    assert chosen.settings["epochs"] == 70
    assert paper_values(chosen)
