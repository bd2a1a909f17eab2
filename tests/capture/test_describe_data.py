import json
import random

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from resume_core.capture.describe_data import describe_loader
from resume_core.capture.runconfig import diff, from_json, to_json
from resume_core.state import Fact


class Guarded(Dataset):
    """Fails when anybody reads a sample."""

    def __init__(self, length=100):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        raise AssertionError("a sample was read")


class GuardedStream(IterableDataset):
    def __iter__(self):
        raise AssertionError("the stream was read")

    def __len__(self):
        raise AssertionError("its length was asked for")


class Buckets:
    """A batch sampler that is no BatchSampler."""

    def __init__(self, batch_size=4):
        self.batch_size = batch_size

    def __iter__(self):
        raise AssertionError("the sampler was iterated")

    def __len__(self):
        return 3


def plain_loader(length=100, **settings):
    return DataLoader(Guarded(length), **{"batch_size": 4, **settings})


def changed(before, after, severity="run"):
    found = diff(from_json(json.loads(json.dumps(to_json(before)))), after)
    return {d.name: (d.saved, d.current) for d in found if d.severity == severity}


def between(first, second, severity="run"):
    return changed(describe_loader(first), describe_loader(second), severity)


def test_a_plain_loader_is_its_batches_its_sampler_and_its_dataset():
    facts = describe_loader(plain_loader(shuffle=True))

    assert {name: fact.value for name, fact in facts.items() if fact.severity == "run"} == {
        "data.0.batch_size": 4,
        "data.0.drop_last": False,
        "data.0.batch_sampler": "torch.utils.data.sampler.BatchSampler",
        "data.0.sampler": "torch.utils.data.sampler.RandomSampler",
        "data.0.sampler.replacement": False,
        "data.0.dataset.length": 100,
        "data.0.collate_fn": "default_collate",
        "data.0.worker_init_fn": None,
    }


def test_the_names_begin_with_the_prefix():
    assert all(name.startswith("val.1.") for name in describe_loader(plain_loader(), "val.1"))


def test_two_equal_loaders_have_equal_facts():
    assert describe_loader(plain_loader(shuffle=True)) == describe_loader(plain_loader(shuffle=True))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (plain_loader(batch_size=4), plain_loader(batch_size=8), {"batch_size": (4, 8)}),
        (plain_loader(), plain_loader(drop_last=True), {"drop_last": (False, True)}),
        (plain_loader(100), plain_loader(101), {"dataset.length": (100, 101)}),
        (
            plain_loader(batch_sampler=Buckets(4), batch_size=1),
            plain_loader(batch_sampler=Buckets(8), batch_size=1),
            {"batch_size": (4, 8)},
        ),
        (
            plain_loader(sampler=RandomSampler(range(100), num_samples=50)),
            plain_loader(sampler=RandomSampler(range(100), num_samples=60)),
            {"sampler.num_samples": (50, 60)},
        ),
        (
            plain_loader(sampler=RandomSampler(range(100))),
            plain_loader(sampler=RandomSampler(range(100), replacement=True)),
            {"sampler.replacement": (False, True)},
        ),
        (
            plain_loader(sampler=RandomSampler(range(100), generator=torch.Generator().manual_seed(1))),
            plain_loader(sampler=RandomSampler(range(100), generator=torch.Generator().manual_seed(2))),
            {"sampler.seed": (1, 2)},
        ),
        (
            plain_loader(sampler=DistributedSampler(range(100), 2, 0, shuffle=True)),
            plain_loader(sampler=DistributedSampler(range(100), 2, 0, shuffle=False)),
            {"sampler.shuffle": (True, False)},
        ),
    ],
)
def test_each_setting_that_changes_is_found_with_both_values(first, second, expected):
    assert between(first, second) == {f"data.0.{name}": pair for name, pair in expected.items()}


def test_another_kind_of_sampler_is_found():
    found = between(plain_loader(), plain_loader(shuffle=True))

    module = "torch.utils.data.sampler"
    assert found["data.0.sampler"] == (f"{module}.SequentialSampler", f"{module}.RandomSampler")


def test_another_kind_of_batch_sampler_is_found():
    found = between(plain_loader(), plain_loader(batch_sampler=Buckets(), batch_size=1))

    assert found["data.0.batch_sampler"] == ("torch.utils.data.sampler.BatchSampler", f"{__name__}.Buckets")


def test_the_sampler_inside_a_batch_sampler_is_the_one_described():
    batches = BatchSampler(RandomSampler(range(100)), 5, drop_last=True)

    facts = describe_loader(DataLoader(Guarded(), batch_sampler=batches))

    assert facts["data.0.batch_size"].value == 5
    assert facts["data.0.drop_last"].value is True
    assert facts["data.0.sampler"].value.endswith("RandomSampler")


def test_the_placeholder_next_to_a_batch_sampler_of_its_own_kind_is_not_described():
    assert "data.0.sampler" not in describe_loader(plain_loader(batch_sampler=Buckets(), batch_size=1))


def test_a_loader_without_batches_is_described():
    facts = describe_loader(plain_loader(batch_size=None))

    assert facts["data.0.batch_size"].value is None
    assert facts["data.0.batch_sampler"].value is None
    assert facts["data.0.sampler"].value.endswith("SequentialSampler")


def test_one_changed_weight_of_a_weighted_sampler_is_found():
    weights = torch.ones(100)
    other = weights.clone()
    other[57] = 2

    first, second = (plain_loader(sampler=WeightedRandomSampler(w, 100)) for w in (weights, other))

    assert list(between(first, second)) == ["data.0.sampler.weights"]


def test_other_indices_of_a_subset_sampler_are_found():
    first, second = (plain_loader(sampler=SubsetRandomSampler(indices)) for indices in ([1, 2, 3], [1, 2, 4]))

    assert list(between(first, second)) == ["data.0.sampler.indices"]


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_generator_that_nobody_seeded_is_no_fact(generator):
    loader = plain_loader(sampler=RandomSampler(range(100), generator=generator))

    assert "data.0.sampler.seed" not in describe_loader(loader)


def test_the_rank_and_the_share_of_a_distributed_sampler_are_no_facts():
    loaders = [plain_loader(sampler=DistributedSampler(range(100), world, 0)) for world in (2, 4)]

    assert between(*loaders) == {}


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [
        ("num_workers", 0, 2),
        ("pin_memory", False, True),
        ("prefetch_factor", 2, 4),
        ("persistent_workers", False, True),
        ("multiprocessing_context", "fork", "spawn"),
    ],
)
def test_how_data_is_fetched_is_information(setting, old, new):
    workers = {} if setting in ("num_workers", "pin_memory") else {"num_workers": 1}
    first, second = (plain_loader(**workers, **{setting: value}) for value in (old, new))

    assert between(first, second) == {}
    assert between(first, second, "info")[f"data.0.{setting}"] == (old, new)


def collate_in_pairs(samples):
    return samples


def test_the_collate_function_decides_the_run_by_its_name():
    facts = describe_loader(plain_loader(collate_fn=collate_in_pairs, worker_init_fn=random.seed))

    assert facts["data.0.collate_fn"] == Fact(f"{__name__}.collate_in_pairs")
    assert "seed" in facts["data.0.worker_init_fn"].value


# --- datasets


def test_the_class_of_a_dataset_is_information():
    found = between(plain_loader(), DataLoader(TensorDataset(torch.zeros(100)), batch_size=4), "info")

    assert found["data.0.dataset.class"] == (f"{__name__}.Guarded", "torch.utils.data.dataset.TensorDataset")


def test_a_subset_of_other_samples_is_found_though_its_length_is_the_same():
    first, second = (DataLoader(Subset(Guarded(), indices)) for indices in ([1, 2, 3], [1, 2, 4]))

    assert list(between(first, second)) == ["data.0.dataset.indices"]


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_the_form_in_which_a_subset_keeps_its_indices_does_not_matter(form):
    first, second = (DataLoader(Subset(Guarded(), indices)) for indices in (range(10), form(list(range(10)))))

    assert between(first, second) == {}


def test_a_split_drawn_under_another_seed_is_found():
    first, second = (
        DataLoader(random_split(Guarded(), [80, 20], generator=torch.Generator().manual_seed(seed))[0])
        for seed in (1, 2)
    )

    assert list(between(first, second)) == ["data.0.dataset.indices"]


def test_the_data_below_a_subset_is_described_too():
    first, second = (DataLoader(Subset(Subset(Guarded(length), range(50)), range(10))) for length in (100, 200))

    assert between(first, second) == {"data.0.dataset.dataset.dataset.length": (100, 200)}


def test_the_parts_of_a_concatenation_are_described():
    def loader(*lengths):
        return DataLoader(ConcatDataset([Guarded(length) for length in lengths]))

    assert describe_loader(loader(10, 20))["data.0.dataset.length"].value == 30
    assert between(loader(10, 20), loader(20, 10)) == {
        "data.0.dataset.lengths": ([10, 20], [20, 10]),
        "data.0.dataset.datasets.0.length": (10, 20),
        "data.0.dataset.datasets.1.length": (20, 10),
    }


def test_a_concatenation_of_thousands_stays_small_and_every_length_counts():
    def loader(last):
        return DataLoader(ConcatDataset([*(Guarded(3) for _ in range(4999)), Guarded(last), Guarded(10 - last)]))

    assert len(describe_loader(loader(4))) < 300
    assert list(between(loader(4), loader(5))) == ["data.0.dataset.lengths"]


def test_a_wrapper_of_the_users_own_does_not_hide_the_dataset_below():
    class Augmented(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return 7

    facts = describe_loader(DataLoader(Augmented(Guarded(70))))

    assert facts["data.0.dataset.length"].value == 7
    assert facts["data.0.dataset.dataset.length"].value == 70


def test_a_wrapper_that_wraps_itself_ends():
    dataset = Guarded()
    dataset.dataset = dataset

    assert len(describe_loader(DataLoader(dataset))) < 50


def test_an_attribute_that_only_looks_like_a_dataset_is_no_trouble():
    dataset = Guarded()
    dataset.dataset = "mnist"
    dataset.indices = {"a": 1}

    facts = describe_loader(DataLoader(dataset))

    assert "data.0.dataset.dataset.class" not in facts
    assert facts["data.0.dataset.indices"].value is None


def test_a_hugging_face_dataset_is_known_by_its_fingerprint():
    first = datasets.Dataset.from_dict({"x": list(range(10))})
    second = datasets.Dataset.from_dict({"x": [*range(9), -1]})

    assert between(DataLoader(first), DataLoader(second)) == {
        "data.0.dataset.fingerprint": (first._fingerprint, second._fingerprint)
    }


def test_a_hugging_face_dataset_made_again_has_the_same_fingerprint():
    loaders = [DataLoader(datasets.Dataset.from_dict({"x": list(range(10))})) for _ in range(2)]

    assert between(*loaders) == {}


def test_the_fingerprint_is_found_below_a_subset():
    data = datasets.Dataset.from_dict({"x": list(range(10))})

    facts = describe_loader(DataLoader(Subset(data, range(5))))

    assert facts["data.0.dataset.dataset.fingerprint"].value == data._fingerprint


def test_an_iterable_dataset_is_marked_and_neither_read_nor_measured():
    facts = describe_loader(DataLoader(GuardedStream(), batch_size=4))

    assert facts["data.0.dataset.iterable"] == Fact(True)
    assert facts["data.0.dataset.length"].value is None
    assert facts["data.0.batch_size"].value == 4
    assert "data.0.sampler" not in facts


def test_a_streaming_hugging_face_dataset_is_marked():
    stream = datasets.Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()

    assert describe_loader(DataLoader(stream))["data.0.dataset.iterable"].value is True


# --- other loaders


def test_a_list_of_batches_is_described_by_their_number():
    facts = describe_loader([torch.zeros(2), torch.zeros(2)])

    assert facts == {"data.0.class": Fact("builtins.list", "info"), "data.0.num_batches": Fact(2)}


def test_a_loader_without_a_length_is_described():
    assert describe_loader(iter([1]))["data.0.num_batches"].value is None


def test_a_length_that_raises_is_no_trouble():
    class Moody(Guarded):
        def __len__(self):
            raise RuntimeError("not now")

    loader = DataLoader(Moody(), sampler=SequentialSampler(range(3)))

    assert describe_loader(loader)["data.0.dataset.length"].value is None


def test_describing_a_loader_draws_no_random_number_and_reads_no_sample():
    generator = torch.Generator().manual_seed(3)
    loader = plain_loader(shuffle=True, generator=generator)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), generator.get_state()

    describe_loader(loader)

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert torch.equal(generator.get_state(), before[3])


def test_a_transform_that_hugging_face_cannot_hash_does_not_block_a_restart():
    def with_transform(generator_seed):
        data = datasets.Dataset.from_dict({"x": [1, 2, 3]})
        generator = np.random.default_rng(generator_seed)
        return data.with_transform(lambda batch: {"x": [v + generator.random() for v in batch["x"]]})

    first, second = (describe_loader(DataLoader(with_transform(seed), 2)) for seed in (1, 2))
    changed = {name for name in first if first[name] != second[name]}
    assert changed <= {"data.0.dataset.fingerprint"}
    assert first["data.0.dataset.fingerprint"].severity == "info"
    assert first["data.0.dataset.columns"].value == ["x"]
