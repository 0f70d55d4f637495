"""The dtypes and optimizers of estimates. Imports no torch, for which help and completion would wait."""

COMMAND = "accel estimate-memory"
#: bits of a number
DTYPES = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
DEFAULT_DTYPES = ("float32", "bfloat16", "int8", "int4")
#: how many tensors of the size and dtype of a parameter an optimizer of torch keeps for it
STATES = {
    **{"adam": 2, "adamw": 2, "adamax": 2, "nadam": 2, "radam": 2, "adadelta": 2},
    **{"rmsprop": 1, "adagrad": 1, "sgd_momentum": 1, "sgd": 0},
}
DEFAULT_OPTIMIZER = "adamw"
