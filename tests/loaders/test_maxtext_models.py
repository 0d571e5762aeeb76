#!/usr/bin/env python3
"""transformers loads models that come back from a tree of MaxText's: the Hugging Face directory that
transformers wrote is made a tree, the tree is a source, and its view gives the first directory's
tensors and logits."""
import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from support import WorkDirectory, load_all, mounted, run, same_bits
from test_transformers import logits
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
         "max_position_embeddings": 64}


def llama():
    # Of 16 elements: what MaxText divides queries by is 4, so that nothing is rounded.
    return LlamaForCausalLM(LlamaConfig(
        **SIZES, num_hidden_layers=2, num_key_value_heads=2, head_dim=16, rope_parameters={
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32}))


def qwen3_moe():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **SIZES, num_hidden_layers=3, num_key_value_heads=2, head_dim=16, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32))


def deepseek_v3():
    return DeepseekV3ForCausalLM(DeepseekV3Config(
        **SIZES, num_hidden_layers=3, num_key_value_heads=4, first_k_dense_replace=1,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32,
        n_group=1, topk_group=1, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=16))


class FromPretrained(WorkDirectory):
    def check(self, make):
        torch.manual_seed(7)
        source = self.work / "source"
        make().to(torch.bfloat16).save_pretrained(source)
        _, want = logits(source)
        self.assertTrue(torch.isfinite(want).all())
        tensors = load_all(source)
        for view in ("maxtext-scanned", "maxtext-unscanned"):
            tree = self.work / view
            run("export", source, view, tree)
            with mounted(tree / "0/items", self.work / "mnt", "--config", source) as mnt:
                back = load_all(mnt / "bf16-safetensors")
                self.assertEqual(set(tensors), set(back))
                for name, tensor in tensors.items():
                    self.assertTrue(same_bits(tensor.to(torch.bfloat16), back[name]), name)
                model, got = logits(mnt / "bf16-safetensors")
                self.assertTrue(torch.equal(want, got), view)
                model = back = None  # they may map the view

    def test_llama_3_1(self):
        self.check(llama)

    def test_qwen3_moe(self):
        self.check(qwen3_moe)

    def test_deepseek_v3(self):
        self.check(deepseek_v3)


if __name__ == "__main__":
    unittest.main()
