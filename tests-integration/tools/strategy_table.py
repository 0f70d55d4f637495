"""The table of docs/guides/sharding.md: what each strategy does, by which test; run it to write the page anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "sharding.md"
PLACE = re.compile(r"(?<=<!-- strategies -->\n).*?(?=<!-- end of strategies -->)", re.DOTALL)
FOLDERS = {
    "accel": "packages/accel/tests",
    "deepspeed": "packages/accel-deepspeed/tests",
    "parallel": "packages/accel-parallel/tests",
    "together": "tests-integration",
}
STRATEGIES = ("single", "ddp", "fsdp2", "HSDP", "tp", "fsdp2 + tp", "deepspeed", "spmd")
#: ways to divide sequences, beside ddp or fsdp2, whose tests are the same
SEQUENCES = ("sp", "cp")
#: a model whose layers Transformers has divided
ARRIVED = "arrived"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a strategy does with a feature; `words` are those of a refusal, which its test expects.

    `test` is a folder of FOLDERS, a file without "test_" and ".py", and a test without "test_".
    """

    says: str
    test: str
    words: str = ""

    @property
    def path(self) -> str:
        """The file of the test, from the root."""
        folder, file, _ = self.test.split("/")
        return _file(FOLDERS[folder], f"test_{file}.py")

    @property
    def function(self) -> str:
        """The name of the test."""
        return "test_" + self.test.split("/")[2]

    @property
    def text(self) -> str:
        """The cell in Markdown, with a link to the file of its test."""
        return f"[{self.says}](../../{self.path})"

    def problems(self) -> list[str]:
        """Why the cell is not true of the tests, in words."""
        decorators = _tests(ROOT / self.path).get(self.function)
        if decorators is None:
            return [f"{self.path} has no {self.function}"]
        lines = []
        soaks, only_soaks = "in_soak(" in decorators, "soak(only=True)" in decorators
        if (self.says == "yes" and only_soaks) or (self.says == "in soaks" and not (soaks or only_soaks)):
            lines.append(f"{self.function}: the table says {self.says!r}, its marks are {decorators or 'none'}")
        if self.words not in (ROOT / self.path).read_text():
            lines.append(f"{self.path} expects no {self.words!r}")
        return lines


@cache
def _file(folder: str, name: str) -> str:
    """The file of this name in the folder or a folder in it, from the root."""
    found = next(iter(sorted((ROOT / folder).rglob(name))), ROOT / folder / name)
    return found.relative_to(ROOT).as_posix()


@cache
def _tests(path: Path) -> dict[str, str]:
    """Each test of a file, and its decorators as text."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text()) if path.exists() else ast.Module([], [])):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = " ".join(map(ast.unparse, node.decorator_list))
    return found


def yes(test: str) -> Cell:
    """The feature works."""
    return Cell("yes", test)


def soaked(test: str) -> Cell:
    """The feature works; only a soak tests it."""
    return Cell("in soaks", test)


def refused(test: str, words: str) -> Cell:
    """The feature is refused with these words."""
    return Cell("refused", test, words)


def fails(test: str, words: str) -> Cell:
    """The feature fails inside of torch, with these words; a test waits for the torch in which it works."""
    return Cell("fails in torch", test, words)


#: the feature has no meaning with this strategy
EMPTY = "-"

_OF_MODELS = "together/equal_models/two_processes_train_as_one"
_OF_COPIES = "together/equal_models/four_processes_train_as_one"
_FSDP2 = "accel/fsdp2/two_ranks_that_share_all_weights_train_as_one"
_HSDP = "accel/fsdp2/copies_that_are_sharded_themselves_train_as_one"
_TP = "accel/tensor_parallel/two_ranks_that_divide_each_layer_train_as_one"
_BOTH = "accel/tensor_parallel/four_ranks_that_share_divided_layers_train_as_one"
_ZERO = "deepspeed/training/all_stages_of_zero_train_as_ddp"
_ZERO_REFUSES = "deepspeed/training/what_deepspeed_cannot_do_is_refused_in_words"
_ZERO_MODELS = "deepspeed/tasks/models_of_transformers_train_as_ddp_does"
_ZERO_TASKS_REFUSE = "deepspeed/tasks/local_steps_and_empty_models_are_refused"
_ZERO_COMPILED = "deepspeed/tasks/compiled_models_train_as_ddp_does"
_DEVICES = "accel/spmd/four_devices_train_as_one"
_AS_ONE_DEVICE = "accel/spmd_features/a_feature_does_with_four_devices_what_it_does_with_one"
_DEVICES_REFUSE = "accel/spmd_features/what_several_devices_cannot_do_is_refused_in_words"
_NO_NUMBERS = "torch draws no random numbers again on xla"
_HALF = "together/layout_features/half_precision_trains_as_ddp_does"
_ANY = "together/sharded_checkpoints/any_layout_loads_what_any_other_saved"
_SHARDED_REFUSES = "together/layout_features/what_needs_whole_weights_on_each_rank_is_refused"
_NO_SYNC = "together/layout_features/no_sync_changes_no_gradient"
_VALUES = "together/layout_features/values_are_clipped_in_each_part"
_COMPILED = "together/equal_models/a_compiled_model_trains_as_one_process_sharded_or_divided"
_COPIES_COMPILED = "together/layout_features/a_compiled_model_trains_in_sharded_copies_as_on_one_process"
_BOTH_COMPILED = "together/equal_models/sharded_and_divided_layers_compiled_by_blocks_train_alike"
_META = "accel/models_on_meta/a_model_on_meta_is_filled_by_parts_and_trains_as_one_process"
_META_REFUSED = "accel/models_on_meta/a_model_on_meta_that_each_process_would_hold_whole_is_refused"
_OVERFLOW = "together/layout_tasks/an_overflow_in_a_part_of_one_rank_skips_the_step_of_all"
_TWO = "together/layout_tasks/two_models_with_an_optimizer_each_train_as_on_one_process"
_COMPILED_AGAIN = "together/layout_tasks/compiled_blocks_whose_activations_are_computed_again_train_alike"
_FILES = "together/whole_weights/the_files_of_a_sharded_model_are_those_of_one_process"

Row = Mapping[str, Cell | str]


def row(*cells: Cell | str) -> Row:
    """Cells in the order of STRATEGIES, one for each."""
    return dict(zip(STRATEGIES, cells, strict=True))


def trains(single: str, ddp: str = "", *, spmd: str) -> Row:
    """A feature of training that the large tests of each sharded strategy hold."""
    return row(*map(yes, (single, ddp or single, _FSDP2, _HSDP, _TP, _BOTH, _ZERO, spmd)))


def models(single: Cell | str, deepspeed: Cell | str, spmd: Cell) -> Row:
    """A feature that the tests with models of Transformers hold."""
    return row(single, *map(yes, (_OF_MODELS, _OF_MODELS, _OF_COPIES, _OF_MODELS, _OF_COPIES)), deepspeed, spmd)


def needs_whole_weights(single: Cell | str, ddp: str, words: str, deepspeed: Cell | str) -> Row:
    """A feature that is refused if a rank holds parts of weights."""
    return row(single, yes(ddp), *[refused(_SHARDED_REFUSES, words)] * 4, deepspeed, EMPTY)


FEATURES: dict[str, Row] = {
    "models of Transformers": models(yes(_OF_MODELS), yes(_ZERO_MODELS), yes(_AS_ONE_DEVICE)),
    "accumulation": trains("accel/step/accumulated_steps_equal_those_of_the_large_batch", spmd=_DEVICES),
    "`clip_grad_norm_`": trains("accel/step/clipping_by_norm_is_that_of_torch", spmd=_DEVICES),
    "`clip_grad_value_`": row(*[yes(_VALUES)] * 6, refused(_ZERO_REFUSES, "use clip_grad_norm_"), yes(_AS_ONE_DEVICE)),
    "weighted losses": trains("accel/weights/weighted_gradients_are_those_of_the_large_batch", spmd=_AS_ONE_DEVICE),
    "bf16": row(
        yes("accel/equal_steps/steps_in_half_precision_equal_those_of_one_process"),
        yes("accel/equal_steps/steps_in_half_precision_equal_those_of_one_process"),
        yes("together/equal_models/bf16_trains_with_master_weights_as_ddp_does"),
        yes(_HALF),
        yes("accel/tensor_parallel/half_precision_trains_as_one_process_does"),
        yes(_HALF),
        yes("deepspeed/training/half_precision_trains_as_ddp_does"),
        yes(_AS_ONE_DEVICE),
    ),
    "fp16": row(
        yes("accel/equal_steps/steps_in_half_precision_equal_those_of_one_process"),
        yes("accel/equal_steps/steps_in_half_precision_equal_those_of_one_process"),
        yes("accel/fsdp2/half_precision_trains_as_ddp_does"),
        yes(_HALF),
        yes(_HALF),
        yes("accel/tensor_parallel/half_precision_trains_as_one_process_does"),
        yes("deepspeed/training/half_precision_trains_as_ddp_does"),
        refused(_DEVICES_REFUSE, "XLA trains in bf16"),
    ),
    "an fp16 overflow on one rank skips the step of all": row(
        EMPTY,
        yes("accel/overflow/exactly_the_steps_that_overflowed_are_skipped"),
        *[yes(_OVERFLOW)] * 4,
        yes("deepspeed/training/a_step_that_overflows_on_one_rank_is_skipped_by_all_and_seen"),
        EMPTY,
    ),
    "tied weights": trains(
        "accel/any_device/training_with_tied_weights_equals_plain_pytorch", _OF_MODELS, spmd=_DEVICES
    ),
    "frozen weights": trains(_OF_MODELS, spmd=_AS_ONE_DEVICE),
    "adapters (peft)": models(yes(_OF_MODELS), yes(_ZERO_MODELS), yes(_AS_ONE_DEVICE)),
    "activation checkpointing": models(
        yes("parallel/recompute/less_is_kept_and_no_number_changes"),
        yes(_ZERO_MODELS),
        refused(_DEVICES_REFUSE, _NO_NUMBERS),
    ),
    "torch.compile, block by block": row(
        yes("accel/compilation/a_compiled_model_is_the_same_model"),
        yes("accel/compilation/a_compiled_model_is_the_same_model"),
        yes(_COMPILED),
        soaked(_COPIES_COMPILED),
        yes(_COMPILED),
        soaked(_BOTH_COMPILED),
        yes(_ZERO_COMPILED),
        refused(_DEVICES_REFUSE, "torch_xla 2.9 computes wrong gradients then"),
    ),
    "torch.compile, the whole model": row(
        yes("accel/compilation/a_compiled_model_is_the_same_model"),
        yes("accel/compilation/a_compiled_model_is_the_same_model"),
        soaked(_COMPILED),
        soaked(_COPIES_COMPILED),
        *[fails("together/layout_features/dynamo_cannot_compile_divided_layers_whole", "Mixing fake modes")] * 2,
        yes(_ZERO_COMPILED),
        refused(_DEVICES_REFUSE, "torch_xla 2.9 computes wrong gradients then"),
    ),
    "torch.compile and activation checkpointing": row(
        *[yes(_COMPILED_AGAIN)] * 2,
        yes(_COMPILED),
        yes(_COMPILED_AGAIN),
        *[refused("accel/sharding_refused/wrong_setups_are_refused_in_words", "torch.compile cannot recompute layers")]
        * 2,
        yes(_ZERO_COMPILED),
        refused(_DEVICES_REFUSE, _NO_NUMBERS),
    ),
    "two models, two optimizers": row(
        yes("accel/prepare/several_models_optimizers_and_loaders_in_one_call"),
        yes("accel/prepare/several_models_optimizers_and_loaders_in_one_call"),
        *[yes(_TWO)] * 4,
        refused(_ZERO_REFUSES, "it trains one model for each Accelerator"),
        yes(_AS_ONE_DEVICE),
    ),
    "`gather_for_metrics`": row(
        yes("accel/processes/evaluation_gives_back_the_dataset"),
        yes("accel/processes/evaluation_gives_back_the_dataset"),
        *[yes("together/layout_tasks/metrics_see_each_sample_once_and_in_order")] * 4,
        yes("deepspeed/tasks/metrics_see_each_sample_once_and_in_order"),
        yes(_AS_ONE_DEVICE),
    ),
    "`save_state`, `load_state`": row(
        *[yes(_ANY)] * 4,
        yes(_ANY),
        yes(_ANY),
        yes("deepspeed/training/a_run_goes_on_bit_for_bit_from_its_checkpoint"),
        yes(_DEVICES),
    ),
    "a checkpoint of another strategy": row(
        *[yes(_ANY)] * 6,
        yes("deepspeed/training/checkpoints_go_from_one_stage_to_another_and_to_ddp"),
        yes(_AS_ONE_DEVICE),
    ),
    "`save_state(asynchronous=True)`": row(
        yes("accel/save_state/what_is_written_behind_is_what_was_there_at_the_call"),
        yes("accel/save_rounds/a_save_takes_two_rounds"),
        *[yes("together/sharded_checkpoints/a_sharded_save_behind_has_the_numbers_of_its_moment")] * 4,
        yes("deepspeed/tasks/a_save_behind_has_the_numbers_of_its_moment"),
        yes(_AS_ONE_DEVICE),
    ),
    "`save_model`, `get_state_dict`": row(
        yes("accel/any_device/saved_weights_come_back"),
        *[yes(_FILES)] * 5,
        yes("deepspeed/training/weights_that_are_divided_are_saved_whole_in_float32"),
        yes(_AS_ONE_DEVICE),
    ),
    "weights of a model on meta": row(
        yes(_META),
        refused(
            "accel/models_on_meta/a_model_on_meta_that_each_process_would_hold_whole_is_refused", "on the meta device"
        ),
        *[yes(_META)] * 4,
        refused(_ZERO_TASKS_REFUSE, "are on the meta device"),
        refused(_DEVICES_REFUSE, "on the meta device"),
    ),
    "`no_sync`": row(EMPTY, *[yes(_NO_SYNC)] * 5, refused(_ZERO_REFUSES, "no_sync: DeepSpeed's engine"), EMPTY),
    "`join_uneven_inputs`": needs_whole_weights(
        EMPTY,
        "accel/uneven/seven_batches_beside_six_train_to_the_end",
        "each forward gathers weights from all ranks",
        refused(_ZERO_REFUSES, "join_uneven_inputs with DeepSpeed"),
    ),
    "`LocalSGD`": needs_whole_weights(
        yes("accel/profile_and_local_steps/local_steps_may_be_switched_off"),
        "accel/profile_and_local_steps/local_steps_meet_when_they_are_due",
        "each rank holds a part of each parameter, and cannot train alone",
        refused(_ZERO_TASKS_REFUSE, "no_sync: DeepSpeed's engine"),
    ),
}


_SHARED = "together/long_sequences/two_processes_that_share_sequences_train_as_one"
_PARTS = "together/long_sequence_features/a_feature_does_with_parts_what_it_does_with_the_whole"
_LOOPS = "together/long_sequence_loops/a_model_and_a_loss_of_a_script_train_as_one"
_HALF_PARTS = "together/long_sequence_features/half_precision_trains_within_its_digits"
_RESUMED = "together/long_sequence_loops/a_run_resumes_with_sequences_divided_otherwise"
_NO_PARTS = "together/long_sequence_loops/what_goes_with_no_divided_sequences_is_refused"
#: what both ways to divide sequences do
OF_SEQUENCES: Row = {
    "models of Transformers": yes(_SHARED),
    "accumulation": yes(_SHARED),
    "`clip_grad_norm_`": yes(_SHARED),
    "`clip_grad_value_`": yes(_PARTS),
    "weighted losses": yes(_LOOPS),
    "bf16": yes(_HALF_PARTS),
    "fp16": yes(_HALF_PARTS),
    "an fp16 overflow on one rank skips the step of all": yes(_HALF_PARTS),
    "tied weights": yes(_SHARED),
    "frozen weights": yes(_PARTS),
    "adapters (peft)": yes(_SHARED),
    "activation checkpointing": yes(_SHARED),
    "torch.compile, block by block": refused(_NO_PARTS, "torch.compile of models"),
    "torch.compile, the whole model": refused(_NO_PARTS, "torch.compile of models"),
    "torch.compile and activation checkpointing": refused(_NO_PARTS, "torch.compile of models"),
    "two models, two optimizers": yes(_PARTS),
    "`gather_for_metrics`": yes(_LOOPS),
    "`save_state`, `load_state`": yes(_RESUMED),
    "a checkpoint of another strategy": yes(_RESUMED),
    "`save_state(asynchronous=True)`": yes(_PARTS),
    "`save_model`, `get_state_dict`": yes(_PARTS),
    "weights of a model on meta": yes(_PARTS),
    "`no_sync`": yes(_PARTS),
    "`join_uneven_inputs`": refused(_NO_PARTS, "all need equally many"),
    "`LocalSGD`": refused(_NO_PARTS, "leave LocalSGD out"),
}


_TAKEN = "together/arriving_models/two_processes_train_a_model_that_arrives_divided_as_one"
_OF_ARRIVED = "together/arriving_features/a_feature_does_with_a_divided_model_what_it_does_with_a_whole_one"
_HALF_ARRIVED = "together/arriving_features/half_precision_trains_within_its_digits"
_TAKEN_ON = "together/arriving_models/a_run_goes_on_with_layers_and_experts_divided_otherwise"
_NOT_ARRIVED = "together/arriving_features/what_goes_with_no_divided_model_is_refused"
#: what a model does that arrives divided
OF_ARRIVED: Row = {
    "models of Transformers": yes(_TAKEN),
    "accumulation": yes(_TAKEN),
    "`clip_grad_norm_`": yes(_TAKEN),
    "`clip_grad_value_`": yes(_OF_ARRIVED),
    "weighted losses": yes(_OF_ARRIVED),
    "bf16": yes(_HALF_ARRIVED),
    "fp16": yes(_HALF_ARRIVED),
    "an fp16 overflow on one rank skips the step of all": yes(_HALF_ARRIVED),
    "tied weights": yes(_TAKEN),
    "frozen weights": yes(_OF_ARRIVED),
    "adapters (peft)": refused(_NOT_ARRIVED, "adapters"),
    "activation checkpointing": yes(_OF_ARRIVED),
    "torch.compile, block by block": yes(_OF_ARRIVED),
    "torch.compile, the whole model": refused(_NOT_ARRIVED, "torch.compile"),
    "torch.compile and activation checkpointing": refused(
        "accel/sharding_refused/wrong_setups_are_refused_in_words", "torch.compile cannot recompute layers"
    ),
    "two models, two optimizers": yes(_OF_ARRIVED),
    "`gather_for_metrics`": yes(_OF_ARRIVED),
    "`save_state`, `load_state`": yes(_TAKEN_ON),
    "a checkpoint of another strategy": yes(_TAKEN_ON),
    "`save_state(asynchronous=True)`": yes(_OF_ARRIVED),
    "`save_model`, `get_state_dict`": yes(_OF_ARRIVED),
    "weights of a model on meta": EMPTY,
    "`no_sync`": yes(_OF_ARRIVED),
    "`join_uneven_inputs`": refused(_NOT_ARRIVED, "each forward gathers weights from all ranks"),
    "`LocalSGD`": refused(_NOT_ARRIVED, "each rank holds a part of each parameter, and cannot train alone"),
}


def all_cells() -> dict[str, list[Cell | str]]:
    """The cells of each feature, in the order of the columns."""
    return {
        feature: [*cells.values(), *[OF_SEQUENCES[feature]] * len(SEQUENCES), OF_ARRIVED[feature]]
        for feature, cells in FEATURES.items()
    }


def table() -> str:
    """One row for each feature."""
    columns = (*STRATEGIES, *SEQUENCES, ARRIVED)
    rows = [f"| | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for feature, cells in all_cells().items():
        texts = [cell.text if isinstance(cell, Cell) else cell for cell in cells]
        rows.append(f"| {feature} | {' | '.join(texts)} |")
    return "\n".join(rows) + "\n"


def problems() -> list[str]:
    """Cells that the tests do not hold, in words."""
    cells = [cell for cells in all_cells().values() for cell in cells if isinstance(cell, Cell)]
    return list(dict.fromkeys(line for cell in cells for line in cell.problems()))


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda match: table(), PAGE.read_text()))
