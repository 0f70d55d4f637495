"""Evaluates a random GPT-2 by lm-eval, on a task of our own, and prints what it found as JSON."""

import json
import os
import sys
from pathlib import Path

import accelerate
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

WORDS = [f"w{number}" for number in range(40)]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def main(folder):
    rank = os.environ.get("RANK", "0")
    place = Path(folder, f"rank-{rank}")
    place.mkdir()
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[END]", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    set_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=len(vocabulary), n_positions=32, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(place / "model")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32, **special).save_pretrained(place / "model")
    rows = [
        {
            "question": " ".join(WORDS[(7 * row + 3 * at) % 40] for at in range(6)),
            "choices": [" ".join(WORDS[(row + at + n) % 40] for n in range(at + 1)) for at in range(3)],
            "answer": row % 3,
        }
        for row in range(22)
    ]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "tiny.yaml").write_text(TASK.format(data=place / "rows.jsonl"))
    model = HFLM(pretrained=str(place / "model"), device="cpu", batch_size=4)
    tasks = TaskManager(include_path=str(place), include_defaults=False)
    results = simple_evaluate(model, tasks=["tiny"], task_manager=tasks, bootstrap_iters=0)
    if rank == "0":
        scores = results["results"]["tiny"]
        found = {name: [[value]] for name, value in scores.items() if isinstance(value, float)}
        found["samples"] = [[float(sum(len(rows) for rows in results["samples"].values()))]]
        found["by"] = accelerate.Accelerator.__module__
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
