"""Trains random models by sentence-transformers and by setfit, and prints the losses of each as JSON."""

import json
import os
import sys
from pathlib import Path

import accelerate
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import CosineSimilarityLoss
from sentence_transformers.models import Pooling, Transformer
from setfit import SetFitModel
from setfit import Trainer as SetFitTrainer
from setfit import TrainingArguments as SetFitArguments
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

WORDS = [f"w{number}" for number in range(40)]
SENTENCES = [" ".join(WORDS[(7 * row + 3 * place) % 40] for place in range(6)) for row in range(32)]


def write_encoder(folder):
    """Writes an encoder of random weights, and a tokenizer."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    set_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)  # on each process before any group is there, or only one writes
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **special).save_pretrained(folder)


def encoder(folder):
    body = Transformer(str(folder / "model"), max_seq_length=16)
    return SentenceTransformer(modules=[body, Pooling(16)], device="cpu")


def options(folder):
    return {"output_dir": str(folder), "report_to": [], "logging_steps": 1, "seed": 3}


def sentences(folder):
    data = Dataset.from_dict(
        {
            "sentence1": SENTENCES,
            "sentence2": SENTENCES[::-1],
            "score": [row / len(SENTENCES) for row in range(len(SENTENCES))],
        }
    )
    model = encoder(folder)
    arguments = SentenceTransformerTrainingArguments(
        **options(folder), per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3, use_cpu=True,
        eval_strategy="steps", eval_steps=3, disable_tqdm=True,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=data, eval_dataset=data.select(range(8)), loss=CosineSimilarityLoss(model)
    )
    trainer.train()
    names = ("loss", "eval_loss", "grad_norm")
    return [[entry[name] for name in names if name in entry] for entry in trainer.state.log_history]


def accuracy(predicted, wanted):
    return {"accuracy": sum(int(one) == int(other) for one, other in zip(predicted, wanted, strict=True)) / len(wanted)}


def few_shots(folder):
    data = Dataset.from_dict({"text": SENTENCES[:8], "label": [row % 2 for row in range(8)]})
    model = SetFitModel(encoder(folder), LogisticRegression())
    arguments = SetFitArguments(**options(folder), batch_size=4, num_epochs=1, num_iterations=2, save_strategy="no")
    # its own metric comes from the hub
    trainer = SetFitTrainer(model, arguments, train_dataset=data, eval_dataset=data, metric=accuracy)
    trainer.train()
    weights = [[weight.detach().abs().sum().item()] for weight in model.model_body.parameters()]
    return [*weights, [trainer.evaluate()["accuracy"]]]


def main(folder):
    found = {"by": accelerate.Accelerator.__module__}
    rank = os.environ.get("RANK", "0")
    place = Path(folder, rank)
    write_encoder(place / "model")
    for name, train in (("sentences", sentences), ("few shots", few_shots)):
        found[name] = train(place)
    if rank == "0":
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
