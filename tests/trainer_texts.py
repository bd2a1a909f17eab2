"""A Trainer as users of text have it: `datasets`, a tokenizer, masked words, samples grouped by length."""

from __future__ import annotations

import random
from pydoc_data.topics import topics
from typing import Any

import harness
import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from trainer_scripts import Recorded, end, make_trainer
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

_SPECIAL = ["<pad>", "<unk>", "<mask>", "<cls>", "<sep>"]


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: place for place, word in enumerate([*_SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "unk_token", "mask_token", "cls_token", "sep_token"), _SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_dataset(job: harness.Job, texts: list[str], tokenizer: PreTrainedTokenizerFast, *, grouped: bool) -> Dataset:
    """Sentences whose words are shuffled a little each time that they are read."""
    columns = {"id": list(range(len(texts))), "text": texts}
    if grouped:
        columns["length"] = [len(text.split()) for text in texts]
    data = Dataset.from_dict(columns)

    def transform(batch: dict[str, list[Any]]) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"input_ids": [], "id": batch["id"]}
        for index, text in zip(batch["id"], batch["text"], strict=True):
            harness.Recorder(job).read(index)
            words = text.split()
            at, cut = random.randrange(len(words)), torch.randint(1, 3, ()).item()
            found["input_ids"].append(tokenizer(" ".join(words[at:] + words[:at][cut:]))["input_ids"] or [1])
        return found

    data.set_transform(transform, columns=["id", "text"], output_all_columns=True)
    return data


class Collate(DataCollatorForLanguageModeling):
    """Masks words, and keeps the ids of samples beside them."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        ids = torch.tensor([feature.pop("id") for feature in features])
        batch = super().__call__([{"input_ids": feature["input_ids"]} for feature in features], return_tensors)
        return {**batch, "id": ids, "x": torch.cat([batch["input_ids"], batch["labels"]], 1)}


class Texts(Recorded):
    """What is written down of a batch is what its words were masked with."""

    def _strip(self, inputs: dict[str, Any]) -> None:
        inputs.pop("x")


def run(job: harness.Job) -> None:
    torch.set_num_threads(1)
    disable_progress_bars()
    texts = [" ".join(topics[name].split()[:12]) for name in sorted(topics)][: job.num_samples]
    tokenizer = make_tokenizer(texts)
    grouped = job.options.get("arguments", {}).get("train_sampling_strategy") == "group_by_length"
    torch.manual_seed(job.seed)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 8, "intermediate_size": 16}
    config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    trainer = make_trainer(
        job,
        kind=Texts,
        model=BertForMaskedLM(config),
        train_dataset=make_dataset(job, texts, tokenizer, grouped=grouped),
        data_collator=Collate(tokenizer),
        processing_class=tokenizer,
    )
    end(trainer, trainer.train())
