"""What the DeepSpeed strategy is made of: its options, its config, its engine."""
