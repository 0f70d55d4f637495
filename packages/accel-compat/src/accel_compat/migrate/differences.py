"""What works differently in accel, by the name with which a program asks for it, and the page that says why."""

_ACCUMULATION = "docs/guides/accumulation.md"
_SAVING = "docs/guides/saving.md"
_SCHEDULES = "docs/guides/schedules.md"
_SHORT = "a window that the end of an epoch cuts short is divided by its real number of batches"
_REST = "a schedule rests at its end, and counts steps of the optimizer that happened"
_DATA = "data that differs between processes is refused, where Accelerate trains on it"

#: words and page by the name of a method, a function or an argument
DIFFERENT: dict[str, tuple[str, str]] = {
    "accumulate": (_SHORT, _ACCUMULATION),
    "gradient_accumulation_steps": (_SHORT, _ACCUMULATION),
    "GradientAccumulationPlugin": (_SHORT, _ACCUMULATION),
    "save_state": ("a checkpoint is there whole or not at all, and its weights are safetensors", _SAVING),
    "OneCycleLR": (_REST, _SCHEDULES),
    "LambdaLR": (_REST, _SCHEDULES),
    "get_scheduler": (_REST, _SCHEDULES),
    "get_linear_schedule_with_warmup": (_REST, _SCHEDULES),
    "get_cosine_schedule_with_warmup": (_REST, _SCHEDULES),
    "prepare": (_DATA, "docs/explanation/disagreement.md"),
}
