"""Says whether two sentences mean the same, as scripts for Accelerate do it: padded to the longest of each batch."""

import random

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader

MAX_LENGTH = 16
WORDS = [f"w{number}" for number in range(20)]
PAIRS = 200


def pairs(seed):
    """Pairs of sentences: half of them have the same words in another order."""
    draw = random.Random(seed)
    found = []
    for _ in range(PAIRS):
        first = draw.sample(WORDS, draw.randint(3, 6))
        same = draw.random() < 0.5
        second = draw.sample(first, len(first)) if same else draw.sample([w for w in WORDS if w not in first], 4)
        found.append({"first": first, "second": second, "label": int(same)})
    return found


def tokens(sentence):
    return [1 + WORDS.index(word) for word in sentence]


class Matcher(nn.Module):
    """Compares the sums of the words' vectors."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, 16, padding_idx=0)
        self.judge = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, first, second):
        return self.judge((self.words(first).sum(1) - self.words(second).sum(1)).abs())


def main(epochs=4, batch_size=16):
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))

    def collate(examples):
        fixed = MAX_LENGTH if accelerator.distributed_type == DistributedType.TPU else None
        batch = {"labels": torch.tensor([example["label"] for example in examples])}
        for name in ("first", "second"):
            rows = [tokens(example[name]) for example in examples]
            width = fixed or max(map(len, rows))
            batch[name] = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return batch

    set_seed(42)
    with accelerator.main_process_first():
        train, held_out = pairs(1), pairs(2)
    train_dataloader = DataLoader(train, shuffle=True, collate_fn=collate, batch_size=batch_size, drop_last=True)
    eval_dataloader = DataLoader(held_out, shuffle=False, collate_fn=collate, batch_size=batch_size)
    model = Matcher().to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = epochs * (PAIRS // batch_size)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (2 * steps)))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for _ in range(epochs):
        model.train()
        for batch in train_dataloader:
            labels = batch.pop("labels")
            loss = nn.functional.cross_entropy(model(**batch), labels)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = seen = 0
    for batch in eval_dataloader:
        labels = batch.pop("labels")
        with torch.no_grad():
            predictions = model(**batch).argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, labels))
        right += (predictions == references).sum().item()
        seen += len(references)
    total = sum(p.detach().double().abs().sum().item() for p in accelerator.unwrap_model(model).parameters())
    accelerator.end_training()
    return {"accuracy": right / seen, "seen": seen, "weights": total}


if __name__ == "__main__":
    print(main())
