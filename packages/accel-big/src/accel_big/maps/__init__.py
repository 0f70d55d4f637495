"""Choose a device for each part of a model, from sizes alone. Nothing is read or moved here."""
