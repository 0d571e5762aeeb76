#include "source/torch/megatron.h"

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace ckfs {
namespace {

TEST(MegatronEntry, IsKnownByTheFrontOfItsName) {
  using Entry = MegatronEntry;
  const std::vector<std::pair<std::string, Entry>> names = {
      {"decoder.layers.self_attention.linear_qkv.weight", Entry::Weight},
      {"module.decoder.layers.0.mlp.router.expert_bias", Entry::Weight},
      {"decoder.layers.0.optimizer.state.param.weight", Entry::Weight},
      {"my_optimizer.weight", Entry::Weight},
      {"chained_optimizer.weight", Entry::Weight},
      {"chained_.optimizer.state.param.w", Entry::Weight},
      {"decoder.rng_state.weight", Entry::Weight},
      {"optimizer.state.param.decoder.final_layernorm.weight", Entry::Master},
      {"optimizer.state.fp32_param.module.decoder.layers.mlp.linear_fc1.weight", Entry::Master},
      {"chained_12.optimizer.state.param.output_layer.weight", Entry::Master},
      {"optimizer.state.param.", Entry::Optimizer},
      {"optimizer.state.exp_avg.decoder.final_layernorm.weight", Entry::Optimizer},
      {"chained_0.optimizer.state.exp_avg_sq.output_layer.weight", Entry::Optimizer},
      {"chained_1.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
       "torch.float32).bucket_idx_0.param",
       Entry::Optimizer},
      {"optimizer.fp32_from_fp16_params.decoder.w", Entry::Optimizer},
      {"optimizer.distributed.dp_group_idx_0.per_bucket_numel/shard_0_1", Entry::Optimizer},
      {"decoder.layers.self_attention.linear_qkv._extra_state/shard_3.0_48.2", Entry::ExtraState},
      {"module.decoder.layers.1.mlp.linear_fc1._extra_state", Entry::ExtraState},
      {"decoder.layers._extra_states.weight", Entry::Weight},
      {"rng_state/shard_0.0_2.2", Entry::RandomState},
      {"rerun_state_machine_state/shard_0_1", Entry::RandomState},
      {"common_state/shard_0_1", Entry::Common},
  };
  for (const auto& [name, entry] : names) EXPECT_EQ(megatron_entry(name), entry) << name;
}

TEST(MegatronEntry, OfAMasterEndsWithTheNameOfItsWeight) {
  EXPECT_EQ(weight_of_master("chained_1.optimizer.state.param.decoder.layers.mlp.w"),
            "decoder.layers.mlp.w");
  EXPECT_EQ(weight_of_master("optimizer.state.fp32_param.module.output_layer.weight"),
            "module.output_layer.weight");
}

}  // namespace
}  // namespace ckfs
