"""One rank of a DeepSpeed run on CPU: trains two steps of a small model, and saves it.

    zero_worker.py OUT STAGE DTYPE SUB_GROUP_SIZE SEED      started by torch.distributed.run
"""
import os
import sys

import deepspeed
import torch


class Block(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, inner)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """Widths that no number of ranks divides, buffers, a frozen layer, several parameter groups."""

    def __init__(self, vocabulary=53, width=13, inner=29):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Block(width, inner) for _ in range(3))
        self.frozen = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("positions", torch.arange(7))
        self.register_buffer("scales", torch.rand(3))
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.frozen(x))


def main():
    out, stage, dtype, sub_group_size, seed = sys.argv[1:]
    torch.manual_seed(int(seed))
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = Model()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([
        {"params": [p for _, p in trained if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for _, p in trained if p.ndim <= 1], "weight_decay": 0.0}], lr=1e-3)
    zero = {"stage": int(stage)}
    if stage == "3":
        zero["sub_group_size"] = int(sub_group_size)
    config = {"train_micro_batch_size_per_gpu": 5, "steps_per_print": 10**9,
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": zero}
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(2):
        tokens = torch.randint(0, 53, (5,), generator=torch.Generator().manual_seed(
            int(seed) + 100 * step + torch.distributed.get_rank()))
        loss = engine(tokens).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(out)
    torch.distributed.barrier()
    # Threads of a group that is left to the interpreter's end have aborted a worker there.
    torch.distributed.destroy_process_group()


main()
# So have other threads of torch's. All is written by now, and no rank waits for another: what the
# interpreter does at its end has no part in the test. An error does not come here and keeps its
# exit code.
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
