"""Save all that training resumes from, and load it."""
