"""A small language model with the Hugging Face Trainer, in a run that survives being killed.

It learns from the help texts that come with Python, cut up at random. Start it, kill it (kill -9 in another terminal),
start it again: it goes on where it was, and ends with the very numbers that it would have ended with anyway. Delete its
directory to begin anew.
"""

import argparse
import random
from pydoc_data.topics import topics

from tokenizers import ByteLevelBPETokenizer
from torch.utils.data import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from accelerate_resume import SaveEvery, TrainerResumeCallback

LENGTH = 32


def make_tokenizer(texts):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=500, special_tokens=["<end>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, pad_token="<end>", eos_token="<end>")


class Pieces(Dataset):
    """All texts in a row, cut into pieces that begin a little further on each time."""

    def __init__(self, texts, tokenizer):
        self.ids = [token for text in texts for token in tokenizer(text)["input_ids"]]

    def __len__(self):
        return len(self.ids) // LENGTH - 1

    def __getitem__(self, index):
        first = index * LENGTH + random.randrange(LENGTH)
        return {"input_ids": self.ids[first : first + LENGTH]}


def train(directory, epochs):
    set_seed(7)
    texts = [topics[name] for name in sorted(topics)][:24]
    tokenizer = make_tokenizer(texts)
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=LENGTH,
        n_embd=48,
        n_layer=2,
        n_head=2,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        "text-out",
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=7,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataset=Pieces(texts, tokenizer),
        callbacks=[TrainerResumeCallback(directory, save=SaveEvery(steps=20))],  # the one line that this package adds
    )
    trainer.train()
    print(f"sum of all weights: {sum(p.double().sum().item() for p in model.parameters()):.17f}")


def parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default="text-run", help="a folder, or s3://bucket/run")
    parser.add_argument("--epochs", type=int, default=6)
    return parser


if __name__ == "__main__":
    train(**vars(parser().parse_args()))
