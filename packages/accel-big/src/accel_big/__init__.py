"""Big models: how much memory one takes, before anybody has so much. Its command is `accel estimate-memory`."""
