"""Check that a training run does what it should, in its steps (`command`) and its data (`consumption_log`)."""
