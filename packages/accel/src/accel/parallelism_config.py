"""The sizes of the axes of parallelism, under the path that scripts import them from."""

from accel_parallel import ParallelismConfig as ParallelismConfig
