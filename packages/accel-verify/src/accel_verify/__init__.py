"""Proofs that a training run does what it should, of its steps (`command`) and of its data (`consumption_log`)."""
