"""A path that scripts import names of `accel.utils` from."""

from accel.utils import __dir__ as __dir__
from accel.utils import __getattr__ as __getattr__
