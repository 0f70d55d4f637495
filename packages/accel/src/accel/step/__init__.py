"""What a loop calls between a batch and the next."""
