"""Give tests for Accelerate what they import from `test_utils`."""
