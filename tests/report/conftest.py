import re
from dataclasses import replace

import pytest

from lmrc.evaluation.run import TaskRecord
from lmrc.report.records import Command, Description, RunRecord

#: Accuracy on the classes of each task, by method, seed and task.
TASK_ACCURACIES = {
    "steady": {0: [[1.0], [0.75, 1.0], [0.5, 0.75, 1.0]], 1: [[1.0], [1.0, 1.0], [0.75, 1.0, 0.5]]},
    '<b>forgets & "falls"</b>': {
        0: [[1.0], [0.0, 1.0], [0.0, 0.25, 1.0]],
        1: [[0.5], [0.0, 0.5], [0.0, 0.0, 0.75]],
    },
}
CLASSES = [["cat"], ["dog"], ["<i>emu"]]


def task_record(accuracies):
    """Four test samples of each class; what is wrong went to the newest task."""
    task = len(accuracies) - 1
    confusion = [[0, 0, 0] for _ in CLASSES]
    for i, share in enumerate(accuracies):
        confusion[i][i] += round(4 * share)
        confusion[i][task] += 4 - round(4 * share)
    mean = sum(accuracies) / len(accuracies)
    return TaskRecord(
        task=task,
        classes=CLASSES[task],
        n_classes_seen=task + 1,
        accuracy=mean,
        top5=1.0,
        task_accuracies=accuracies,
        old_accuracy=sum(accuracies[:-1]) / task if task else None,
        new_accuracy=accuracies[-1],
        task_id_accuracy=mean,
        task_aware_accuracy=None,
        task_confusion=confusion,
        per_class={CLASSES[i][0]: share for i, share in enumerate(accuracies)},
        train_seconds=1.5,
        test_seconds=0.5,
    )


@pytest.fixture(scope="session")
def records():
    """Two methods, two seeds, three tasks of one class."""
    return [
        RunRecord(
            method=method,
            seed=seed,
            settings={"dataset": "pets", "epochs": 3, "strength": float(method == "steady")},
            record=task_record(accuracies),
            versions={"lmrc": "9.9", "python": "3.99"},
            hardware="abacus, 2 cores",
            threads=1,
        )
        for method, seeds in TASK_ACCURACIES.items()
        for seed, steps in seeds.items()
        for accuracies in steps
    ]


@pytest.fixture(scope="session")
def description():
    return Description(
        experiment="pets",
        title="Pets & <co>",
        question="Do <they> stay?",
        commands=[Command("lmrc pets --out 'a <b>'"), Command("lmrc pets --seeds 2")],
        headline="Steady keeps 62 % & more.",
        findings=["One <em>sentence</em>.", "Another, 50 %."],
    )


@pytest.fixture
def steady(records):
    """Two seeds, three tasks; 12 kB of exemplars and 6 kB of statistics in the end."""
    return [
        replace(r, extra={"stored_bytes": {"images": 12_000, "statistics": 6_000}})
        for r in records
        if r.method == "steady"
    ]


@pytest.fixture
def renamed(records):
    """Return the records of one method under other names, one after the other."""
    means = [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.4, 0.2]] + 2 * [[0.0, 0.0, 0.25, 0.75]]
    outputs = {"kind": "probability", "classes": [0, 1, 2, 3], "means": means}
    steady = [record for record in records if record.method == "steady"]

    def rename(*methods):
        return [replace(r, method=m, extra={"outputs": outputs}) for m in methods for r in steady]

    return rename


@pytest.fixture
def rows_of():
    """Return the rows of all tables as lists of text, by their first cell."""

    def rows(html):
        found = {}
        for row in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL):
            cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL)
            texts = [re.sub("<[^>]+>", "", cell).strip() for cell in cells]
            found.setdefault(texts[0], []).append(texts[1:])
        return found

    return rows


@pytest.fixture
def cells_of(rows_of):
    """Return the text of the cells of the first row that begins with a name."""
    return lambda html, name: [name, *rows_of(html)[name][0]]


@pytest.fixture
def colours_of():
    """Return (method, colour) for each row with a colour, table after table."""

    def colours(html):
        whole_names = html.replace("<wbr>", "")
        found = re.findall(r'class="key" style="background:(#\w+)"></span>([^<]+)<', whole_names)
        return [(method, colour) for colour, method in found]

    return colours
