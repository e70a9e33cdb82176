"""The order and the colours of methods, on the pages of all experiments."""

import re
from dataclasses import replace

import pytest

from lmrc.methods.catalog import METHODS
from lmrc.report.build import BUILDERS, build
from lmrc.report.figures import look
from lmrc.report.page import assemble, render
from lmrc.report.titles import in_order, places

OUTPUTS = {
    "kind": "probability",
    "classes": [0, 1, 2, 3],
    "means": [[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.25, 0.75]],
}


def named(records, *methods):
    """Return the records of one method under other names, one after the other."""
    steady = [record for record in records if record.method == "steady"]
    return [replace(r, method=m, extra={"outputs": OUTPUTS}) for m in methods for r in steady]


def keys(html):
    """Return (method, colour) for each row with a colour, table after table."""
    whole_names = html.replace("<wbr>", "")
    found = re.findall(r'class="key" style="background:(#\w+)"></span>([^<]+)<', whole_names)
    return [(method, colour) for colour, method in found]


@pytest.mark.parametrize("experiment", sorted({*BUILDERS, "incremental"}))
def test_a_page_has_the_recipes_order_whichever_run_ended_first(experiment, description, records):
    recipe = {"methods": ["lmrc", "my.own:Method", "lm", "finetune"]}
    asked = replace(description, experiment=experiment, recipe=recipe)
    titles = ["LMRC", "my.own.Method", "LM", "Fine-tuning"]
    one = render(asked, named(records, "another", *reversed(titles)))
    assert one == render(asked, named(records, *titles, "another"))
    if experiment != "ablation":  # it shows the first and the last step first
        assert list(dict.fromkeys(method for method, _ in keys(one))) == [*titles, "another"]


@pytest.mark.parametrize("experiment", sorted({*BUILDERS, "incremental"}))
def test_a_method_has_one_colour_on_every_page(experiment, description, records):
    asked = replace(description, experiment=experiment)
    for shown in (["LM", "LMRC"], ["Fine-tuning", "my.own.Method", "LMRC", "LM"], ["LM"]):
        found = set(keys(render(asked, named(records, *shown))))
        assert len(found) == len(shown)  # one colour each, in all tables
        assert ("LM", look(list(METHODS).index("lm")).colour) in found
        assert len({colour for _, colour in found}) == len(shown)


def test_the_lines_have_the_colours_of_the_tables(description, records):
    contents = build(description, named(records, "LM", "my.own.Method", "LMRC"))
    lines = contents.drawings["accuracy"].figure.axes[0].lines
    drawn = {(line.get_label().split(":")[0], line.get_color()) for line in lines}
    assert drawn == set(keys(assemble(description, contents)))


def test_table_1_keeps_its_layout_whichever_run_ended_first(description, records):
    titles = [f"{m} + {pool} per class" for pool in (5, 2) for m in ("Fine-tuning", "LMRC")]
    asked = replace(
        description,
        experiment="rehearsal",
        recipe={"methods": ["finetune", "lmrc"], "memory": [5, 2]},
    )
    html = render(asked, named(records, *reversed(titles)))
    assert html == render(asked, named(records, *titles))
    table_1, tasks = keys(html)[:2], keys(html)[2:6]
    assert [method for method, _ in table_1] == ["Fine-tuning", "LMRC"]
    assert [method for method, _ in tasks] == titles
    assert [colour for _, colour in tasks] == 2 * [colour for _, colour in table_1]


def test_variants_are_known_by_their_titles(records):
    recipe = {"methods": ["b", "a"], "variants": {"a": {"title": "A!"}, "b": {"title": "B!"}}}
    ordered = in_order(named(records, "A!", "B!"), recipe)
    assert list(dict.fromkeys(record.method for record in ordered)) == ["B!", "A!"]


def test_a_pool_does_not_change_a_methods_colour_where_the_method_alone_is_not_shown():
    assert places(["LM + 20 per class"])["LM + 20 per class"] == places(["LM"])["LM"]
    both = places(["LM + 20 per class", "LM"])
    assert both["LM"] == places(["LM"])["LM"] != both["LM + 20 per class"]
