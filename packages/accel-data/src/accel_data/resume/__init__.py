"""The position of a loader, and how the loader resumes there."""
