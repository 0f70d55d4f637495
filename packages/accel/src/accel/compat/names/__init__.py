"""Functions and classes that scripts import from Accelerate's `utils`, by job."""
