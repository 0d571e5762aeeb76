#!/usr/bin/env python3
"""Runs a model that transformers loads from a directory, and prints what it computed.

    load_view.py DIRECTORY

The part of the demo that a user's own program would play: nothing here knows of ckfs.
"""
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto",
                                             experts_implementation="eager")
with torch.no_grad():
    logits = model(torch.tensor([[1, 2, 3, 4]])).logits
print(f"{type(model).__name__}, {next(model.parameters()).dtype},"
      f" {sum(p.numel() for p in model.parameters()):,} parameters")
print("next token after 1 2 3 4:", logits[0, -1].argmax().item())
