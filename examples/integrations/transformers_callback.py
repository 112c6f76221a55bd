"""Hugging Face Trainer: a tiny model with evaluation and checkpoints, by report_to="torchett"."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchett.record.adapters.transformers import EttCallback  # report_to knows it from here on


class Tokens(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + index) % 64
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    assert EttCallback  # or, without report_to: Trainer(callbacks=[EttCallback()], …)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="out")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    )
    arguments = TrainingArguments(
        output_dir=options.folder,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
        logging_steps=1,
        report_to="torchett",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
    trainer.train(resume_from_checkpoint=options.resume)


if __name__ == "__main__":
    main()
