#!/bin/sh
# the same program, sharded
accelerate launch \
    --config_file fsdp.yaml \
    classification.py
