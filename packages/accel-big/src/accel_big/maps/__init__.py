"""Which part of a model goes to which device, from sizes alone: nothing is read or moved here."""
