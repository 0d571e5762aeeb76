#!/usr/bin/env python3
"""What people run today: DeepSpeed's own zero_to_fp32, to safetensors in shards.

    baseline_zero.py SRC OUT SHARD

Prints the seconds that the conversion took, without those of importing DeepSpeed.
"""
import contextlib
import logging
import sys
import time

with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed talks while it is imported
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
logging.disable()


def main():
    source, out, shard = sys.argv[1:]
    begin = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        convert_zero_checkpoint_to_fp32_state_dict(source, out, max_shard_size=shard,
                                                   safe_serialization=True)
    print(time.perf_counter() - begin)


main()
