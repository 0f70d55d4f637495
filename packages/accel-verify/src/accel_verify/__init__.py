"""Proofs that a training run does what it should: of its steps (`accel verify`) and of its data (`ledger`)."""
