"""What a loop does besides training with sequences that are divided: losses of its own, evaluation, resuming."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accel_sequence
import pytest
import torch
from accel import Accelerator, ActivationCheckpointingKwargs, LocalSGD, ParallelismConfig
from accel_sequence import CannotDivide
from accel_state import CannotRun, release
from accel_testing import MakePool
from long_sequences.models import LongCase, loss_in_its_dtype, make_model, rows_of
from long_sequences.own_model import LENGTH, VOCABULARY, Own
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader
from whole_tensors import whole

with_transformers = pytest.mark.skipif(not find_spec("transformers"), reason="a library is not installed")


def own_loop(sizes: dict[str, Any], recompute: bool) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """Losses, weights, and the predictions of an evaluation."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        kwargs_handlers=[ActivationCheckpointingKwargs()] if recompute else [],
        parallelism_config=ParallelismConfig(**sizes) if sizes else None,
    )
    torch.manual_seed(accelerator.process_index)
    model: Any = Own().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows: Any = torch.randint(0, VOCABULARY, (22, LENGTH), generator=torch.Generator().manual_seed(2))
    loaders = (DataLoader(rows[:16], batch_size=2), DataLoader(rows[16:], batch_size=4))
    model, optimizer, loader, tests = accelerator.prepare(model, optimizer, *loaders)
    losses = []
    for tokens in loader:
        with accelerator.accumulate(model):
            labels = tokens.masked_fill(tokens % 3 == tokens[:, :1] % 3, -100)
            logits = model(tokens)
            assert accel_sequence.whole(logits.argmax(-1)).shape == tokens.shape
            with torch.no_grad():
                model(tokens)  # as a teacher's
            loss = accel_sequence.loss(logits, labels, shifted=False, reduction="sum")
            accelerator.backward(loss, weight=(labels[:, 1:] != -100).sum())
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    found = []
    with torch.no_grad():
        for tokens in tests:
            logits = model(tokens)
            losses.append(accel_sequence.loss(logits, tokens, shifted=False).item())
            found.append(accelerator.gather_for_metrics((logits, tokens)))
    assert torch.equal(torch.cat([tokens for _, tokens in found]), rows[16:])
    state = accelerator.unwrap_model(model).state_dict()
    return losses, {name: whole(value) for name, value in state.items()}, torch.cat([logits for logits, _ in found])


@pytest.mark.parametrize("sizes", [{"sp_size": 2}, {"cp_size": 2}], ids=str)
def test_a_model_and_a_loss_of_a_script_train_as_one(world: MakePool, sizes: dict[str, Any]) -> None:
    """Weighted windows, a length that does not divide, recomputation, and an evaluation of whole sequences."""
    wanted = own_loop({}, False)
    for recompute in (False, True):
        for found in world(2).run(own_loop, sizes, recompute):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def own_losses(sizes: dict[str, Any], weighted: bool) -> list[Any]:
    """Losses with label smoothing, a z-loss and weights, by both ways to divide them; weights, and hits by token."""
    release()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, parallelism_config=ParallelismConfig(**sizes) if sizes else None
    )
    torch.manual_seed(1)
    model: Any = Own().double()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    random, found = torch.Generator().manual_seed(6), []
    for _ in range(6):
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=random)
        weights = torch.rand(2, LENGTH, generator=random, dtype=torch.float64)
        with accelerator.accumulate(model):
            logits = model(tokens)
            with torch.no_grad():
                teacher = model(tokens)
            targets = accel_sequence.part(pad(tokens[:, 1:], (0, 1), value=-100), fill=-100)
            mine = accel_sequence.part(weights)
            losses = cross_entropy(logits.mT, targets, label_smoothing=0.1, reduction="none")
            losses = losses + 0.1 * logits.logsumexp(-1).square()
            losses = losses + (logits - accel_sequence.part(teacher) / 2).square().sum(-1)
            loss = accel_sequence.total((losses * mine).sum())
            if weighted:
                accelerator.backward(loss, weight=weights.sum())
            else:
                accelerator.backward(loss / accel_sequence.total(mine.sum()))
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    model.eval()
    with torch.no_grad():
        hits = (model(tokens).argmax(-1) % 2 == accel_sequence.part(tokens) % 2).sum()
        found.append(accel_sequence.total(hits).item())
    state = accelerator.unwrap_model(model).state_dict()
    return [found, {name: whole(value) for name, value in state.items()}]


def test_losses_of_a_script_by_part_and_total_are_those_of_one_process(world: MakePool) -> None:
    for weighted, sizes in ((True, {"sp_size": 2}), (False, {"cp_size": 2})):
        wanted = own_losses({}, weighted)
        for found in world(2).run(own_losses, sizes, weighted):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def trained(folder: Path, sizes: dict[str, Any], fsdp: bool, steps: int, resumes: bool) -> dict[str, Tensor]:
    """Train a model of Transformers for some steps, from the start or from a checkpoint, and save one."""
    release()
    accelerator = Accelerator(
        cpu=True,
        project_dir=folder,
        strategy="fsdp2" if fsdp else None,
        parallelism_config=ParallelismConfig(**sizes) if sizes else None,
    )
    case = LongCase("llama")
    torch.manual_seed(3)
    model = make_model(case).double()
    model.loss_function = loss_in_its_dtype
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader: Any = DataLoader(rows_of(case), batch_size=2)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resumes:
        accelerator.load_state(str(folder / "saved"))
    for step, batch in enumerate(loader, 1):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == steps:
            if not resumes:
                accelerator.save_state(str(folder / "saved"))
            break
    state = accelerator.unwrap_model(model).state_dict()
    return {name: whole(value) for name, value in state.items()}


@with_transformers
def test_a_run_resumes_with_sequences_divided_otherwise(world: MakePool, tmp_path: Path) -> None:
    wanted = trained(tmp_path / "one", {}, False, 6, False)
    pool = world(2)
    pool.run(trained, tmp_path, {"sp_size": 2}, True, 3, False)
    for sizes, fsdp in (({"cp_size": 2}, False), ({"cp_size": 2}, True)):
        for found in pool.run(trained, tmp_path, sizes, fsdp, 3, True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(trained(tmp_path, {}, False, 3, True), wanted, rtol=1e-9, atol=1e-9)


def evaluated(sizes: dict[str, Any], name: str) -> tuple[Tensor, ...]:
    """The loss, the logits and the generated tokens of a prepared model."""
    release()
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes) if sizes else None)
    torch.manual_seed(4)
    model = make_model(LongCase(name)).double()
    model.loss_function = loss_in_its_dtype
    model = accelerator.prepare(model).eval()
    tokens = torch.arange(22).reshape(2, 11)
    mask = torch.ones_like(tokens).index_fill(1, torch.tensor([0]), 0)
    inside = accelerator.unwrap_model(model)
    with torch.no_grad():
        out = model(input_ids=tokens, labels=tokens, output_hidden_states=True)
    made = inside.generate(tokens, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert "attn_implementation" not in inside.config.to_dict()
    return out.loss, out.logits, out.hidden_states[1], made


@with_transformers
@pytest.mark.parametrize("name", ["mistral", "gpt_oss"])
def test_evaluation_and_generation_are_those_of_whole_sequences(world: MakePool, name: str) -> None:
    wanted = evaluated({}, name)
    for sizes in ({"sp_size": 2}, {"cp_size": 2}):
        for found in world(2).run(evaluated, sizes, name):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def refusals() -> list[str]:
    """The words for what is asked in vain, in the order of the calls."""
    said = []
    for more in ({"strategy": "spmd"}, {"dynamo_backend": "eager"}):
        release()
        with pytest.raises(CannotRun) as cannot:
            Accelerator(cpu=True, parallelism_config=ParallelismConfig(sp_size=2), **more)  # type: ignore[arg-type]
        said.append(str(cannot.value))
    release()
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(sp_size=2))
    model = accelerator.prepare(Own())
    with pytest.raises(ValueError, match="local steps") as local:
        LocalSGD(accelerator, model, 2).__enter__()
    said.append(str(local.value))
    with pytest.raises(ValueError, match="join_uneven_inputs") as joined:
        accelerator.join_uneven_inputs([model]).__enter__()
    said.append(str(joined.value))
    with pytest.raises(CannotDivide) as unlike:
        model(torch.full((1, 4), accelerator.process_index))
    said.append(str(unlike.value))
    return said


def test_what_goes_with_no_divided_sequences_is_refused(world: MakePool) -> None:
    for said in world(2).run(refusals):
        wanted = (
            "it does not divide sequences",
            "torch.compile of models",
            "leave LocalSGD out",
            "all need equally many",
        )
        for words, message in zip((*wanted, "unlike batches"), said, strict=True):
            assert words in message
