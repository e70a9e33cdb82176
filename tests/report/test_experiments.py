"""What the reports of single experiments show beyond the common page."""

import re
from dataclasses import replace

import pytest

from lmrc.report.build import build
from lmrc.report.capacity import number
from lmrc.report.page import assemble, render
from lmrc.report.records import Command, append_record, write_description
from lmrc.report.summary import csv_table, markdown_table, summarize_methods
from lmrc.report.write import write_report


def cells_of(html, row):
    """Return the text of the cells of the first row that begins with a name."""
    for found in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", found, flags=re.DOTALL)
        texts = [re.sub("<[^>]+>", "", cell).strip() for cell in cells]
        if texts[0] == row:
            return texts
    raise AssertionError(f"no row {row}")


@pytest.fixture
def pooled(records):
    """The steady method with pools of 2 and 5, for a table like the paper's."""
    steady = [record for record in records if record.method == "steady"]
    return [
        replace(
            record,
            method=f"steady + {pool} per class",
            settings={**record.settings, "memory_per_class": pool},
        )
        for pool in (5, 2)
        for record in steady
    ]


def test_table_1_has_the_papers_number_beside_ours(description, pooled):
    asked = replace(
        description, experiment="rehearsal", paper={"steady + 2 per class": 0.497}, headline=""
    )
    contents = build(asked, pooled)
    html = assemble(asked, contents)
    assert cells_of(html, "method") == ["method", "2 per class", "paper", "5 per class", "paper"]
    assert cells_of(html, "steady") == ["steady", "89.6 ± 2.9", "49.7", "89.6 ± 2.9", "–"]
    assert "| steady | 89.6 ± 2.9 | 49.7 | 89.6 ± 2.9 | – |" in contents.markdown
    assert "best on the test set" in html
    assert "steady has 89.6&nbsp;%, 89.6&nbsp;% with 2, 5 images" in html


def test_table_1_says_nothing_of_the_paper_where_that_has_none_of_its_methods(description, pooled):
    asked = replace(description, experiment="rehearsal", paper={"other + 2 per class": 0.497})
    html = render(asked, pooled)
    assert cells_of(html, "method") == ["method", "2 per class", "5 per class"]
    assert "the paper's" not in html


def test_the_page_of_table_1_names_the_best(description, pooled):
    def worse(run):
        name, record = run.method.replace("steady", "other"), run.record
        return replace(run, method=name, record=replace(record, accuracy=record.accuracy / 2))

    asked = replace(description, experiment="rehearsal", headline="")
    html = render(asked, [*pooled, *map(worse, pooled)])
    assert "steady is best at every pool size: 89.6&nbsp;%, 89.6&nbsp;% with 2, 5 images" in html


def test_the_page_of_table_1_calls_none_best_that_was_compared_with_none(description, pooled):
    other = [replace(r, method="other + 2 per class") for r in pooled if "+ 2" in r.method]
    worse = [replace(r, record=replace(r.record, accuracy=r.record.accuracy / 2)) for r in other]
    asked = replace(description, experiment="rehearsal", headline="")
    assert "steady is best where compared: 89.6&nbsp;% with 2 images" in render(
        asked, [*pooled, *worse]
    )
    alone = [r for r in pooled if "+ 5" in r.method]
    assert "est by" not in (html := render(asked, [*alone, *worse]))
    assert "is best" not in html


def test_the_page_of_table_1_does_not_call_best_what_chance_may_have_made(description, pooled):
    def close(run):
        name, record = run.method.replace("steady", "other"), run.record
        factor = 0.99 if "+ 5" in name else 0.5
        return replace(run, method=name, record=replace(record, accuracy=record.accuracy * factor))

    asked = replace(description, experiment="rehearsal", headline="")
    html = render(asked, [*pooled, *map(close, pooled)])
    assert "steady with 2 (89.6&nbsp;%)" in html
    assert "steady or other, not to be told apart, with 5 (89.6 and 88.7&nbsp;%)" in html


def test_the_page_of_one_pool_has_no_figure_for_it(tmp_path, description, pooled):
    """It would be one point: the table says it all."""
    write_description(tmp_path, replace(description, experiment="rehearsal"))
    for record in pooled:
        if "+ 2" in record.method:
            append_record(tmp_path, record)
    html = write_report(tmp_path).read_text("utf-8")
    assert cells_of(html, "steady") == ["steady", "89.6 ± 2.9"]
    assert "by images kept, per class" not in html
    assert {path.name for path in tmp_path.iterdir()} == {
        "records.jsonl", "run.json", "table.csv", "report.html",
    }  # fmt: skip
    both = replace(description, experiment="rehearsal")
    assert "by images kept, per class" in render(both, pooled)


def rival(records, name, factor):
    """Return the steady method's records under another name, less accurate by a factor."""
    return [
        replace(r, method=name, record=replace(r.record, accuracy=r.record.accuracy * factor))
        for r in records
        if r.method == "steady"
    ]


@pytest.mark.parametrize("experiment", ["incremental", "demo"])
def test_a_headline_does_not_call_best_what_chance_may_have_made(experiment, description, records):
    asked = replace(description, experiment=experiment, headline="", findings=[])
    near = [*records, *rival(records, "near", 0.99), *rival(records, "Joint", 1.0)]
    contents = build(asked, near)
    assert contents.headline.startswith(
        "steady or near, not to be told apart, know most: 89.6 and 88.7 % on average"
    )
    assert contents.headline.endswith("; joint training on all images: 89.6 %.")
    assert [line.split()[0] for line in contents.findings] == ["steady", "near"]
    far = build(asked, [*records, *rival(records, "far", 0.9)])
    assert far.headline == "steady knows most: 89.6 % on average over the tasks."
    assert [line.split()[0] for line in far.findings] == ["steady"]


def test_one_seed_may_differ_from_another_by_a_hundredth(description, records):
    alone = [r for r in records if r.seed == 0]
    asked = replace(description, headline="")
    three = [*alone, *rival(alone, "near", 0.99), *rival(alone, "next", 0.995)]
    assert "steady, next or near, not to be told apart, know most: 87.5, 87.1 and 86.6 %" in (
        build(asked, three).headline
    )
    assert "steady knows most" in build(asked, [*alone, *rival(alone, "far", 0.98)]).headline


def test_the_papers_number_stands_beside_ours(description, records):
    asked = replace(description, experiment="incremental", paper={"steady": 0.664})
    html = render(asked, records)
    assert cells_of(html, "method")[:3] == ["method", "average", "paper"]
    assert cells_of(html, "steady")[:3] == ["steady", "89.6 ± 2.9", "66.4"]
    summaries = summarize_methods(records)
    assert "| steady | 89.6 ± 2.9 | 66.4 | 75.0 ± 0.0 |" in markdown_table(summaries, asked.paper)
    assert csv_table(summaries, asked.paper).splitlines()[1].endswith(",0.664")
    assert "paper" not in cells_of(render(description, records), "method")


def test_probabilities_within_a_head_are_not_said_to_share_a_sum(description, records):
    means = [[0.25, 0.75, 0.5, 0.5], [0.5, 0.5, 0.125, 0.875]]
    within = {"kind": "probability within a head", "classes": [0, 1, 2, 3], "means": means}
    heads = [replace(r, extra={"outputs": within}) for r in records if r.method == "steady"]
    asked = replace(description, experiment="softmax-suppression", headline="", findings=[])
    contents = build(asked, heads)
    html = assemble(asked, contents)
    row = cells_of(html, "steady (within each head)")
    assert row[1:3] == ["old", "0.25 ± 0.00"]
    assert row[-2:] == ["–", "–"]  # old and new classes have no common probability to share
    assert "share a sum of 1" not in html
    assert "steady (probability within each head)" in html
    assert contents.headline == ""


def test_a_position_has_no_class_where_methods_learnt_in_other_orders(description, records):
    def outputs(*classes):
        means = [[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.25, 0.75]]
        return {"outputs": {"kind": "probability", "classes": list(classes), "means": means}}

    steady = [r for r in records if r.method == "steady"]
    first = [replace(r, extra=outputs(0, 1, 2, 3)) for r in steady]
    asked = replace(description, experiment="softmax-suppression", headline="")
    heads = cells_of(render(asked, first), "method")
    assert heads[2:6] == ["class 0", "class 1", "class 2", "class 3"]
    other = [replace(r, method="other", extra=outputs(4, 1, 2, 3)) for r in steady]
    heads = cells_of(render(asked, [*first, *other]), "method")
    assert heads[2:6] == ["old 1", "old 2", "new 1", "new 2"]


def test_names_of_classes_have_room_and_numbers_need_none(description, records):
    def of_numbers(line):
        shares = {str(i): share for i, share in enumerate(line.record.per_class.values())}
        record = replace(line.record, classes=[line.record.task], per_class=shares)
        return replace(line, record=record)

    assert 'class="classes named' in render(description, records)
    assert 'class="classes named' not in render(description, list(map(of_numbers, records)))


def test_top_5_is_shown_where_it_is_asked_for(description, records):
    asked = replace(description, recipe={"metric": "top5"}, headline="")
    contents = build(asked, records)
    html = assemble(asked, contents)
    assert cells_of(html, "steady") == ["steady", *["100.0 ± 0.0"] * 4]
    assert "average incremental top-5 accuracy (%)" in html
    assert "steady: 100.0 ± 0.0" in html
    assert "know most: 100.0 and 100.0&nbsp;% (top 5) on average" in html
    assert "average incremental top-5 accuracy" in contents.markdown


def test_a_report_has_a_headline_once_all_that_was_asked_is_there(description, records):
    first, second = list(dict.fromkeys(record.method for record in records))
    asked = replace(description, headline="", commands=[Command("x", [first, second], seeds=2)])
    assert build(asked, records).headline.startswith("steady knows most: 89.6 %")
    assert build(asked, records[:-1]).headline == ""
    more = replace(asked, commands=[Command("x", [first, second], seeds=3)])
    assert build(more, records).headline == ""


def test_each_command_is_held_to_what_it_asked_for_itself(description, records):
    first, second = list(dict.fromkeys(record.method for record in records))
    lacks = [record for record in records if (record.method, record.seed) != (second, 1)]
    one, other = Command("x", [first], seeds=2), Command("y", [second], seeds=1)
    asked = replace(description, headline="", commands=[one, other])
    assert build(asked, lacks).headline.startswith("steady knows most")
    assert build(asked, [record for record in lacks if record.method == first]).headline == ""
    for command in (replace(other, seeds=2), replace(other, memory=[0, 5])):
        assert build(replace(asked, commands=[command, one]), lacks).headline == ""


def test_settings_that_go_with_the_seed_are_not_those_of_one_seed(description, records):
    shuffled = [replace(r, settings={**r.settings, "order": r.seed}) for r in records]
    asked = replace(description, recipe={"order": "per-seed"})
    assert "shuffled by the run&#39;s seed" in render(asked, shuffled)


def test_settings_that_a_record_does_not_name_are_not_those_of_others(description, records):
    """Records of before a parameter came have it by default, and not as another method has it."""
    older = {"classifier": "LMRCClassifier", "augment": "auto"}
    newer = {"classifier": "LMRCPlusClassifier", "augment": "auto", "rotations": "all"}
    settings = {"steady": newer}
    html = render(
        description, [replace(r, settings=settings.get(r.method, older)) for r in records]
    )
    differing, same = html.split("The same for all that have it")
    assert "rotations" in differing.rsplit("Where the methods differ", 1)[1]
    assert "auto: strong for colour images" in differing
    assert "<dt>rotations</dt>" not in same
    assert "<dt>batch size</dt>" in same


def test_settings_without_effect_are_not_shown(description, records):
    """No halving with a cosine, no test_time_flip images that were not learnt, nothing for None."""
    settings = {"schedule": "cosine", "halve_at": [0.5], "augment": "auto", "test_time_flip": True}
    settings |= {"first_epochs": None, "class_weight": None}
    digits = [replace(r, settings=settings, extra={"augmentation": "none"}) for r in records]
    html = render(description, digits)
    assert "<dt>augment</dt><dd>none</dd>" in html
    assert "<dt>test time flip</dt><dd>no</dd>" in html
    for name in ("halve at", "first epochs", "class weight"):
        assert f"<dt>{name}</dt>" not in html
    colour = [replace(r, extra={"augmentation": "jitter+cutout"}) for r in digits]
    assert "<dt>test time flip</dt><dd>yes</dd>" in render(description, colour)
    unknown = [replace(r, extra={}) for r in digits]  # of before it was recorded
    assert "<dt>test time flip</dt><dd>for colour images</dd>" in render(description, unknown)
    halved = [replace(r, settings={**settings, "schedule": "halving"}) for r in digits]
    assert "<dt>halve at</dt><dd>0.5</dd>" in render(description, halved)


def test_what_changes_from_task_to_task_is_said(description, records):
    settings = {"classifier": "LMRCPlusClassifier", "augment": "auto"}
    kinds = ["cutmix", "jitter+cutout"]
    changing = [
        replace(r, settings=settings, extra={"augmentation": kinds[r.record.task > 0]})
        for r in records
    ]
    assert "<dt>augment</dt><dd>cutmix, then jitter+cutout</dd>" in render(description, changing)


def test_what_one_method_has_no_use_for_is_not_said_to_be_the_same_for_it(description, records):
    settings = {
        "steady": {"schedule": "cosine", "halve_at": [0.5], "first_epochs": 100},
        None: {"schedule": "halving", "halve_at": [0.5], "first_epochs": None},
    }
    html = render(
        description,
        [replace(r, settings=settings.get(r.method, settings[None])) for r in records],
    )
    assert cells_of(html, "halve at")[1:] == ["–", "0.5"]
    assert cells_of(html, "first epochs")[1:] == ["100", "–"]


def test_the_page_says_what_was_asked_and_where_records_come_from(description, records):
    asked = replace(
        description, recipe={"dataset": "pets <x>", "seeds": 2, "limit": None}, notes=["From <a>."]
    )
    html = render(asked, records)
    assert "<dt>dataset</dt><dd>pets &lt;x&gt;</dd>" in html
    assert "From &lt;a&gt;." in html
    assert "<dt>limit</dt>" not in html


@pytest.mark.parametrize(
    "experiment", ["rehearsal", "consolidation", "heads", "softmax-suppression"]
)
def test_a_run_under_way_has_a_page_in_every_experiment(experiment, description, records):
    begun = replace(description, experiment=experiment, headline="", findings=[])
    html = render(begun, records[:1])
    assert "This run has not ended yet." in html
    assert "No run has learnt all tasks yet." in html


def test_every_method_has_a_picture_of_its_own_of_which_heads_win(description, records):
    names = {"steady": "LMRC"}
    ours = [replace(r, method=names.get(r.method, "LMRC+")) for r in records]
    drawings = build(replace(description, experiment="heads"), ours).drawings
    assert set(drawings) >= {"confusion-lmrc", "confusion-lmrc-plus"}


def named(records):
    names = {"cat": "house_cat, Felis catus", "dog": "dog, Canis", "<i>emu": "emu, <Dromaius>"}
    return [
        replace(r, extra={"class_names": [names[label] for label in r.record.classes]})
        for r in records
    ]


def test_classes_are_called_by_their_names(description, records):
    html = render(description, named(records))
    assert cells_of(html, "house cat")[1:] == cells_of(render(description, records), "cat")[1:]
    assert cells_of(html, "emu")


def test_two_classes_are_never_called_alike(description, records):
    alike = [
        replace(r, extra={"class_names": [f"crane, {label}" for label in r.record.classes]})
        for r in records
    ]
    assert cells_of(render(description, alike), "crane, dog")


def test_what_is_told_of_the_data_stands_on_the_page_and_the_paper_does_not(description, records):
    told = [replace(r, extra={"data_note": "Only <2> images."}) for r in records]
    asked = replace(description, experiment="incremental", paper={"steady": 0.664})
    contents = build(asked, told)
    html = assemble(asked, contents)
    assert "Only &lt;2&gt; images." in html
    assert contents.markdown.endswith("|\n\nOnly <2> images.")
    assert "paper" not in cells_of(html, "method")


def test_counts_of_any_size_can_be_read():
    assert [number(x) for x in (0.0, 3.1181, 51.3222, 545.85)] == [
        "1",
        "1,313",
        "2.1e51",
        "7.1e545",
    ]
