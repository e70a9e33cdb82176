import numpy as np
import pytest
import torch

from lmrc.data.datasets import Dataset, digits
from lmrc.data.stream import ClassStream


@pytest.fixture(scope="module")
def letters():
    """Seven classes a…g, three training samples and one test sample each, interleaved."""
    names = np.array(list("gfedcba"))
    y_train = np.tile(names, 3)
    return Dataset(
        "letters",
        np.arange(21, dtype=np.float32)[:, None],
        y_train,
        np.arange(100, 107, dtype=np.float32)[:, None],
        names,
    )


def classes_of(stream):
    return [task.classes.tolist() for task in stream]


@pytest.mark.parametrize(
    ("tasks", "classes"),
    [
        (3, ["abc", "de", "fg"]),  # as equally as possible
        ([1, 4, 2], ["a", "bcde", "fg"]),
        (np.array([5, 2]), ["abcde", "fg"]),
    ],
)
def test_a_number_of_tasks_or_their_sizes(letters, tasks, classes):
    assert classes_of(ClassStream(letters, tasks)) == [list(part) for part in classes]


def test_the_first_batch_may_have_classes_of_its_own_number(letters):
    stream = ClassStream(letters, 3, first_classes=3)
    assert classes_of(stream) == [list("abc"), list("de"), list("fg")]
    assert classes_of(ClassStream(letters, 1, first_classes=7)) == [list("abcdefg")]
    shuffled = ClassStream(letters, 5, order=0, first_classes=3)
    assert [len(c) for c in classes_of(shuffled)] == [3, 1, 1, 1, 1]
    assert shuffled.order.tolist() == ClassStream(letters, 7, order=0).order.tolist()


@pytest.mark.parametrize(
    ("tasks", "first"), [(3, 4), (3, 0), (3, 7), (2, 9), (1, 6), (0, 7), ([3, 4], 3), (9, 1)]
)
def test_a_first_batch_that_leaves_no_equal_shares_is_refused(letters, tasks, first):
    with pytest.raises(ValueError, match=f"first_classes={first}"):
        ClassStream(letters, tasks, first_classes=first)


def test_the_order_may_be_named_and_leave_classes_out(letters):
    stream = ClassStream(letters, [2, 1], order=["g", "a", "c"])
    assert classes_of(stream) == [["g", "a"], ["c"]]
    as_array = ClassStream(letters, 2, np.array(list("gfabcde")))
    assert classes_of(as_array) == [list("gfab"), list("cde")]
    for order, why in ((["a", "z"], r"order names \['z'\]"), (["a", "a"], "more than once")):
        with pytest.raises(ValueError, match=why):
            ClassStream(letters, 1, order=order)


def samples_of(stream):
    """Return the training samples of each task, and check that each goes with its label."""
    y_of = dict(zip(stream.dataset.X_train[:, 0].tolist(), stream.dataset.y_train, strict=True))
    tasks = [task.X_train[:, 0].tolist() for task in stream]
    assert [[y_of[x] for x in task] for task in tasks] == [b.y_train.tolist() for b in stream]
    return tasks


def test_classes_that_recur_bring_other_samples_each_time(letters):
    stream = ClassStream(letters, [["a", "b"], ["b", "c"], ["b", "a"]])
    tasks = samples_of(stream)
    every = [x for task in tasks for x in task]
    assert len(every) == len(set(every)) == 9
    assert [sorted(b.y_train) for b in stream] == [list("aab"), list("bccc"), list("ab")]
    assert stream.order.tolist() == ["a", "b", "c"]
    assert stream.seen(1).tolist() == stream.seen(2).tolist() == ["a", "b", "c"]
    assert stream.task_of == {"a": 0, "b": 0, "c": 1}
    assert sorted(stream[2].y_test) == ["a", "b"]
    assert stream[1:].task_of == {"b": 0, "c": 0, "a": 1}
    assert samples_of(stream[1:]) == tasks[1:]
    assert samples_of(ClassStream(letters, [["a", "b"], ["b", "c"], ["b", "a"]], seed=1)) != tasks
    with pytest.raises(ValueError, match="'a' has 3 training samples, too few for 4 tasks"):
        ClassStream(letters, [["a"], ["a"], ["a"], ["a"]])


def test_in_a_blurry_stream_a_share_of_each_class_comes_with_the_other_tasks():
    y = np.repeat(np.arange(4), 30)
    data = Dataset("d", np.arange(120.0)[:, None], y, np.arange(4.0)[:, None], np.arange(4))
    stream = ClassStream(data, 4, order=[3, 1, 0, 2], blurry=0.2)
    counts = [np.bincount(task.y_train, minlength=4).tolist() for task in stream]
    assert counts == [[2, 2, 2, 24], [2, 24, 2, 2], [24, 2, 2, 2], [2, 2, 24, 2]]
    assert sorted(x for task in samples_of(stream) for x in task) == list(range(120))
    assert [task.tolist() for task in stream.tasks] == [[3], [1], [0], [2]]
    assert set(stream[0].y_test) == {3}
    assert sorted(stream.seen(0)) == [0, 1, 2, 3]
    assert stream.task_of == {3: 0, 1: 1, 0: 2, 2: 3}
    half = ClassStream(data, 4, blurry=0.2, disjoint=0.5)
    counts = np.array([np.bincount(task.y_train, minlength=4) for task in half])
    assert sorted(counts.max(axis=0)) == [24, 24, 30, 30]
    assert sorted((counts > 0).sum(axis=0)) == [1, 1, 4, 4]
    for wrong in ({"blurry": 1.0}, {"blurry": -0.1}, {"blurry": 0.1, "disjoint": 2}):
        with pytest.raises(ValueError, match="must be a share from 0 to below 1"):
            ClassStream(data, 4, **wrong)
    with pytest.raises(ValueError, match="set blurry, too"):
        ClassStream(data, 4, disjoint=0.5)


def test_torch_datasets_are_streamed_as_partial_fit_takes_them(as_dataset):
    images = torch.randint(256, (4, 3, 6, 5), dtype=torch.uint8)
    train = as_dataset([(x, torch.tensor(i % 2)) for i, x in enumerate(images)])
    test = as_dataset([(images[0], 0), (images[1], 1)])
    stream = ClassStream((train, test), 2)
    assert stream[1].y_train.tolist() == [1, 1]
    assert torch.equal(torch.from_numpy(stream[1].X_train).permute(0, 3, 1, 2), images[1::2])
    grey = ClassStream((as_dataset([(x[:1], str(i)) for i, x in enumerate(images)]),) * 2, 4)
    assert (grey[2].X_train.shape, grey.order.tolist()) == ((1, 6, 5), list("0123"))
    with pytest.raises(ValueError, match=r"not \(input, label\) pairs"):
        ClassStream((as_dataset(images), test), 2)
    for wrong in (train, (train, None), [train, test]):
        with pytest.raises(TypeError, match="torch Dataset"):
            ClassStream(wrong, 2)


def test_labels_name_the_batches_and_may_leave_classes_out(letters):
    stream = ClassStream(letters, [["g", "a"], ["c"]])
    assert classes_of(stream) == [["g", "a"], ["c"]]
    assert stream.order.tolist() == ["g", "a", "c"]
    assert set(stream.test_up_to(-1)[1]) == {"a", "c", "g"}


def test_each_batch_holds_exactly_the_samples_of_its_classes(letters):
    stream = ClassStream(letters, 3, order=0)
    seen = []
    for i, task in enumerate(stream):
        assert task.index == i
        assert set(task.y_train) == set(task.y_test) == set(task.classes)
        # X tells where a sample stood: values and labels must still belong together.
        np.testing.assert_array_equal(letters.y_train[task.X_train[:, 0].astype(int)], task.y_train)
        np.testing.assert_array_equal(
            letters.y_test[task.X_test[:, 0].astype(int) - 100], task.y_test
        )
        seen += task.X_train[:, 0].tolist()
    assert sorted(seen) == list(range(21))


def test_indexing_counts_from_both_ends(letters):
    stream = ClassStream(letters, 3)
    assert len(stream) == 3
    assert stream[2].classes.tolist() == stream[-1].classes.tolist() == ["f", "g"]
    assert stream[-1].index == 2
    assert stream[np.int64(1)].index == 1
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"task {index} of a stream of 3"):
            stream[index]


def test_a_slice_is_a_stream_of_its_own(letters):
    rest = ClassStream(letters, 3)[1:]
    assert classes_of(rest) == [["d", "e"], ["f", "g"]]
    assert [task.index for task in rest] == [0, 1]
    assert rest.order.tolist() == list("defg")
    assert rest.task_of == {"d": 0, "e": 0, "f": 1, "g": 1}


def test_an_empty_slice_is_an_empty_stream(letters):
    nothing = ClassStream(letters, 3)[3:]
    assert (len(nothing), list(nothing), nothing.order.tolist()) == (0, [], [])


def test_test_samples_up_to_a_batch_come_in_the_order_of_the_data_set(letters):
    X, y = ClassStream(letters, 3).test_up_to(1)
    assert y.tolist() == list("edcba")
    assert X[:, 0].tolist() == [102, 103, 104, 105, 106]


def test_only_the_selected_task_is_read():
    class Counting(np.ndarray):
        rows_read = 0

        def __getitem__(self, key):
            if isinstance(key, np.ndarray):
                Counting.rows_read += len(key)
            return np.asarray(self)[key]

    whole = digits()
    X = whole.X_train.view(Counting)
    stream = ClassStream(Dataset("d", X, whole.y_train, whole.X_test, whole.y_test), 5)
    stream[:3].seen(1)
    assert Counting.rows_read == 0
    task = stream[1]
    assert Counting.rows_read == len(task.y_train) < 300


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (0, "0 tasks of 7 classes: choose from 1 to 7"),
        (8, r"8 tasks of 7 classes: .*--tasks"),
        ([3, 3], "sums to 6, but the data set has 7 classes"),
        ([3, 5], "sums to 8"),
        ([7, 0], "at least one class"),
        ([["a"], []], "at least one class"),
        ([["a", "z"]], r"names \['z'\], which the data set does not hold"),
        ([["a"], ["b", "b"]], r"names \['b'\] more than once"),
        (["a", "b"], r"got \['a', 'b'\]"),
        ([], r"got \[\]"),
        (2.5, "got 2.5"),
        ([[0, 1]], "which the data set does not hold"),
    ],
)
def test_wrong_batches_are_named(letters, tasks, message):
    with pytest.raises(ValueError, match=message):
        ClassStream(letters, tasks)


def test_text_that_looks_like_a_number_is_not_that_number():
    with pytest.raises(ValueError, match=r"names \['1', '2'\]"):
        ClassStream(digits(), [["1"], ["2"]])


@pytest.mark.parametrize("order", ["shuffled", -1, 1.5, None])
def test_wrong_order_is_named(letters, order):
    with pytest.raises(ValueError, match=f"got {order!r}"):
        ClassStream(letters, 3, order=order)


def test_a_seed_contradicts_named_labels(letters):
    with pytest.raises(ValueError, match="an order already, but order=3"):
        ClassStream(letters, [["a"], ["b"]], order=3)
