"""Programs by others, as they are: where each lives, how it is started, how many steps it takes.

A program runs in a copy of its folder, so that the checkout stays as it is; what it reads as data
is made here, at random. `truth` counts its steps from what it prints itself.
"""

import json
import pickle
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
Truth = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: `arguments(long)` is its command line after the interpreter or torchrun."""

    name: str
    folder: str  # in the folder of checkouts; "" if the program is part of an installed package
    arguments: Callable[[bool], list[str]]
    truth: Truth
    ranks: int = 1
    torchrun: bool = False
    prepare: Callable[[Path], None] = lambda folder: None
    modules: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def command(self, long: bool) -> list[str]:
        if not self.torchrun:
            return [sys.executable, *self.arguments(long)]
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        return [torchrun, f"--nproc-per-node={self.ranks}", *self.arguments(long)]


def last(pattern: str, plus: int = 0) -> Truth:
    """The last number that the pattern finds, and `plus`."""

    def count(output: str) -> int:
        found = re.findall(pattern, output)
        return int(found[-1]) + plus if found else -1

    return count


def matches(pattern: str) -> Truth:
    return lambda output: len(re.findall(pattern, output))


def words(count: int, seed: int = 0) -> str:
    chosen = random.Random(seed)
    known = ["".join(chosen.choices("abcdefghijklmnop", k=5)) for _ in range(500)]
    lines = (" ".join(chosen.choices(known, k=20)) for _ in range(count // 20))
    return "\n".join(lines) + "\n"


# nanoGPT -------------------------------------------------------------------------------------


def _nanogpt_data(folder: Path) -> None:
    target = folder / "data" / "random_char"
    target.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(0)
    for name in ("train", "val"):
        values = bytes(b for _ in range(200_000) for b in (chosen.randrange(65), 0))
        (target / f"{name}.bin").write_bytes(values)  # little-endian uint16
    letters = [chr(i + 48) for i in range(65)]
    meta = {
        "vocab_size": 65,
        "itos": dict(enumerate(letters)),
        "stoi": {letter: i for i, letter in enumerate(letters)},
    }
    (target / "meta.pkl").write_bytes(pickle.dumps(meta))


def _nanogpt(long: bool) -> list[str]:
    iters = 1900 if long else 20
    return [
        "train.py", "--device=cpu", "--compile=False", "--dataset=random_char",
        f"--max_iters={iters}", f"--lr_decay_iters={iters}", f"--eval_interval={iters // 5}",
        "--eval_iters=5", "--log_interval=1", "--block_size=64", "--batch_size=8", "--n_layer=4",
        "--n_head=4", "--n_embd=64", "--gradient_accumulation_steps=2", "--dtype=float32",
    ]  # fmt: skip


# pytorch/examples ----------------------------------------------------------------------------

_TOKENS = 60_000


def _word_data(folder: Path) -> None:
    target = folder / "random_words"
    target.mkdir(exist_ok=True)
    for seed, (name, count) in enumerate((("train", _TOKENS), ("valid", 4000), ("test", 4000))):
        (target / f"{name}.txt").write_text(words(count, seed))


def _word_model(long: bool) -> list[str]:
    epochs = 36 if long else 1
    return [
        "main.py", "--data=./random_words", "--model=LSTM", "--emsize=64", "--nhid=64",
        "--batch_size=40", f"--epochs={epochs}", "--log-interval=1",
    ]  # fmt: skip


def _word_steps(output: str) -> int:
    """Batches of both epochs: it prints `k/n batches`, where n leaves out a last short one."""
    found = re.findall(r"\|\s*(\d+)/\s*\d+ batches", output)
    epochs = len(re.findall(r"end of epoch", output))
    return epochs * (max(map(int, found)) + 1) if found else -1


# facebookresearch/dlrm -----------------------------------------------------------------------


def _dlrm(long: bool) -> list[str]:
    batches = 2200 if long else 30
    return [
        "dlrm_s_pytorch.py", "--mini-batch-size=256", f"--num-batches={batches}",
        f"--data-size={256 * batches}", "--nepochs=1", "--arch-embedding-size=20000-20000-20000",
        "--arch-sparse-feature-size=32", "--arch-mlp-bot=16-128-32", "--arch-mlp-top=128-64-1",
        "--print-freq=1", f"--test-freq={batches}", "--test-mini-batch-size=256",
    ]  # fmt: skip


def _dlrm_ranks(long: bool) -> list[str]:
    return [*_dlrm(long), "--dist-backend=gloo"]


_DLRM_STEPS = last(r"it (\d+)/\d+ of epoch")


def _torchrec(long: bool) -> list[str]:
    batches = 8000 if long else 20
    tables = ",".join(["2000"] * 26)
    return [
        "torchrec_dlrm/dlrm_main.py", "--epochs=1", "--batch_size=64", "--embedding_dim=16",
        f"--num_embeddings_per_feature={tables}", "--dense_arch_layer_sizes=64,16",
        "--over_arch_layer_sizes=64,1", f"--limit_train_batches={batches}",
        "--limit_val_batches=20", "--limit_test_batches=20",
    ]  # fmt: skip


# HF transformers -----------------------------------------------------------------------------


_ACCURACY = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int32")
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(self, predictions, references):
        same = sum(p == r for p, r in zip(predictions, references))
        return {"accuracy": same / max(len(references), 1)}
"""


def _clm_data(folder: Path) -> None:
    """A tiny model and a tokenizer of words, and random text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    text = words(60_000)
    (folder / "train.txt").write_text(text)
    (folder / "valid.txt").write_text(words(2000, 1))
    known = ["<unk>", "</s>", *sorted({*text.split(), *words(2000, 1).split()})]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "accuracy").mkdir(exist_ok=True)  # which the program would fetch from the hub
    (folder / "accuracy" / "accuracy.py").write_text(_ACCURACY)
    target = folder / "tiny"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(target)
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 4,
        "n_head": 4, "n_positions": 128, "vocab_size": len(known),
        "bos_token_id": 1, "eos_token_id": 1,
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))


def _clm(long: bool) -> list[str]:
    steps = 900 if long else 20
    return [
        "run_clm.py", "--config_name=./tiny", "--tokenizer_name=./tiny", "--train_file=train.txt",
        "--validation_file=valid.txt", "--do_train", "--do_eval", "--block_size=64",
        "--per_device_train_batch_size=8", f"--max_steps={steps}", "--output_dir=out",
        f"--eval_steps={steps // 2}", "--eval_strategy=steps", f"--save_steps={steps // 2}",
        "--logging_steps=1", "--report_to=none", "--use_cpu",
    ]  # fmt: skip


_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_CLM_STEPS = matches(r"'loss': ")

# Lightning and Ray: a few lines that start what their packages bring ---------------------------


def _own(name: str, *more: str) -> Callable[[bool], list[str]]:
    def arguments(long: bool) -> list[str]:
        return [str(HERE / name), "long" if long else "short", *more]

    return arguments


_TOLD = last(r"steps: (\d+)")

PROGRAMS: tuple[Program, ...] = (
    Program(
        name="nanoGPT", folder="nanoGPT", arguments=_nanogpt, prepare=_nanogpt_data,
        truth=last(r"iter (\d+): loss", 1),
    ),
    Program(
        name="examples/word_language_model", folder="examples/word_language_model",
        arguments=_word_model, prepare=_word_data, truth=_word_steps,
    ),
    Program(
        name="examples/regression", folder="examples/regression",
        arguments=lambda long: ["main.py"], truth=last(r"after (\d+) batches"),
    ),
    Program(name="dlrm, 1 rank", folder="dlrm", arguments=_dlrm, truth=_DLRM_STEPS,
            modules=("sklearn",)),
    Program(
        name="dlrm, 2 ranks", folder="dlrm", arguments=_dlrm_ranks, truth=_DLRM_STEPS, ranks=2,
        torchrun=True, modules=("sklearn",),
    ),
    Program(
        name="torchrec_dlrm, 2 ranks", folder="dlrm", arguments=_torchrec, ranks=2, torchrun=True,
        truth=last(r"Total number of iterations: (\d+)"), modules=("torchrec", "fbgemm_gpu"),
    ),
    Program(
        name="Lightning BoringModel, DDP × 2", folder="", arguments=_own("boring.py"), ranks=2,
        truth=_TOLD, modules=("lightning",),
    ),
    Program(
        name="HF run_clm.py, 1 rank", folder="transformers/examples/pytorch/language-modeling",
        arguments=_clm, prepare=_clm_data, truth=_CLM_STEPS, env=_OFFLINE,
        modules=("transformers", "datasets", "evaluate", "accelerate"),
    ),
    Program(
        name="HF run_clm.py, 2 ranks", folder="transformers/examples/pytorch/language-modeling",
        arguments=_clm, prepare=_clm_data, truth=_CLM_STEPS, env=_OFFLINE, ranks=2, torchrun=True,
        modules=("transformers", "datasets", "evaluate", "accelerate"),
    ),
    Program(
        name="Ray Train, 2 workers", folder="", arguments=_own("ray_train.py"), ranks=2,
        truth=_TOLD, modules=("ray",),
    ),
)  # fmt: skip

# What does not run offline on a CPU, and why.
NOT_RUN: dict[str, str] = {
    "nanoGPT, DDP": "sets a CUDA device for every rank (torch.cuda.set_device)",
    "torchtitan": "needs CUDA: it asks for an NCCL backend and device memory",
    "examples/distributed": "leaves without training (status 0) where there are fewer than 2 GPUs",
    "examples/time_sequence_prediction": "loads a numpy array, which torch.load refuses since 2.6",
    "examples/mnist, dcgan, imagenet": "need torchvision, and data from the network",
    "DeepSpeed": "builds its CPU kernels from sources at run time; not installed here",
    "Composer": "pins a torch below the one in use",
}
