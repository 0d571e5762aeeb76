// ZeRO and universal checkpoints that are broken, incomplete, or more than ckfs can serve: each is
// refused with its own message. Every message of these readers must be reached.
#include "source/broken.h"
#include "source/zero_writer.h"
#include "support/safetensors_text.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

using Changes = std::map<std::string, Opcodes>;

ZeroRun small_run(int stage) {
  ZeroRun run;
  run.stage = stage;
  run.groups = {{{"a", {5, 3}}, {"b", {7}}}, {{"c", {4}}}};
  return run;
}

const std::string kRank0 = ZeroWriter::optimizer_name(0);
const std::string kRank1 = ZeroWriter::optimizer_name(1);

/// A checkpoint in the making: a good one of `stage` in the tag "step".
class Checkpoint {
 public:
  explicit Checkpoint(const TemporaryDirectory& out, int stage = 2)
      : out_(out), run_(small_run(stage)), writer_(run_) {
    writer_.write(out, "step");
  }

  void write(const std::string& name, const std::string& bytes) const {
    out_.write("step/" + name, bytes);
  }
  void copy(const std::string& from, const std::string& to) const {
    fs::copy(out_ / ("step/" + from), out_ / ("step/" + to));
  }
  void remove(const std::string& name) const { fs::remove(out_ / ("step/" + name)); }

  void model(const Changes& changes, const TorchWriter& torch = {}) const {
    write(writer_.model_name(), writer_.model_file(changes, torch));
  }

  /// Puts an optimizer file in the place of rank `rank`, with the entries of `states` only.
  void optimizer(std::int64_t rank, const std::vector<std::pair<std::string, Opcodes>>& states,
                 const TorchWriter& torch = {}) const {
    write(ZeroWriter::optimizer_name(rank),
          torch.file(py_dict({{"optimizer_state_dict", py_dict(states)}})));
  }

  /// Has all ranks' files as those of another run.
  void optimizer_of(const ZeroRun& run, std::int64_t rank) const {
    write(ZeroWriter::optimizer_name(rank), ZeroWriter(run).optimizer_file(rank));
  }

  const ZeroRun& run() const { return run_; }
  const ZeroWriter& writer() const { return writer_; }
  const TemporaryDirectory& out() const { return out_; }

 private:
  const TemporaryDirectory& out_;
  ZeroRun run_;
  ZeroWriter writer_;
};

/// Two groups of `dtype` that are empty.
std::vector<std::pair<std::string, Opcodes>> empty_groups(TorchWriter& torch, std::string_view key,
                                                          std::string_view dtype = "Float") {
  return {{std::string(key), py_list({torch.tensor(dtype, {0}, ""), torch.tensor(dtype, {0}, "")})},
          {"partition_count", py_int(2)}};
}

constexpr std::string_view kFlat = "single_partition_of_fp32_groups";

// clang-format off
std::vector<Broken> rank_file_cases() {
  return {
      {"missing_rank", "but the file of rank 1 is missing", [](const auto& out) {
         Checkpoint(out).remove(kRank1);
       }},
      {"missing_first_rank", "but the file of rank 0 is missing", [](const auto& out) {
         Checkpoint(out).remove(kRank0);
       }},
      {"truncated_rank", kRank1, [](const auto& out) {
         const Checkpoint checkpoint(out);
         fs::resize_file(out / ("step/" + kRank1), 700);
       }},
      {"two_worlds", "files of two runs", [](const auto& out) {
         const Checkpoint checkpoint(out);
         ZeroRun other = checkpoint.run();
         other.world = 3;
         checkpoint.optimizer_of(other, 1);
       }},
      {"two_stages", "files of two runs", [](const auto& out) {
         const Checkpoint checkpoint(out);
         ZeroRun other = checkpoint.run();
         other.stage = 1;
         checkpoint.optimizer_of(other, 1);
       }},
      {"other_group_count", "1 groups of parameters, but", [](const auto& out) {
         const Checkpoint checkpoint(out);
         ZeroRun other = checkpoint.run();
         other.groups.pop_back();
         checkpoint.optimizer_of(other, 1);
       }},
      {"other_dtype", "group 0 is BF16, but", [](const auto& out) {
         const Checkpoint checkpoint(out);
         TorchWriter torch;
         auto states = empty_groups(torch, kFlat, "BFloat16");
         states.emplace_back("zero_stage", py_int(2));
         checkpoint.optimizer(1, states, torch);
       }},
      {"rank_beyond_its_own_world", "rank 2, but written by a world of 2 too (ranks 0 to 1)", [](const auto& out) {
         Checkpoint(out).copy(kRank1, ZeroWriter::optimizer_name(2));
       }},
      {"the_same_rank_twice", "another file for the same rank", [](const auto& out) {
         Checkpoint(out).copy(kRank1, "bf16_" + kRank1);
       }},
      {"split_by_parallel_writers", "parallel writers", [](const auto& out) {
         Checkpoint(out).copy(kRank1, kRank1 + "-0.2");
       }},
      {"expert_file", "a file of experts", [](const auto& out) {
         Checkpoint(out).write("layer_0_expert_1_mp_rank_00_model_states.pt", "x");
       }},
      {"expert_groups", "groups of 1 and of 2 partitions: experts", [](const auto& out) {
         TorchWriter torch;
         auto states = empty_groups(torch, kFlat);
         states.back().second = py_ints({2, 1});
         Checkpoint(out).optimizer(0, states, torch);
       }},
      {"autoep_groups", "groups of experts (AutoEP)", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{"ds_zero_partition_groups", py_list({py_int(1)})}});
       }},
      {"old_zero1", "ZeRO-1 of DeepSpeed 0.5.8 or older", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{"local_sub_partitions_of_fp32_groups", py_list({})}});
       }},
      {"no_groups", "no single_partition_of_fp32_groups or fp32_flat_groups", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{"state", py_int(1)}});
       }},
      {"no_optimizer_state", "no optimizer_state_dict", [](const auto& out) {
         Checkpoint(out).write(kRank0, TorchWriter().file(py_dict({{"x", py_int(1)}})));
       }},
      {"groups_are_no_list", "single_partition_of_fp32_groups is not a list", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{std::string(kFlat), py_int(3)}, {"partition_count", py_int(2)}});
       }},
      {"group_is_no_tensor", "not a tensor", [](const auto& out) {
         Checkpoint(out).optimizer(
             0, {{std::string(kFlat), py_list({py_int(3)})}, {"partition_count", py_int(2)}});
       }},
      {"group_is_not_flat", "single_partition_of_fp32_groups[0]: not a flat vector", [](const auto& out) {
         TorchWriter torch;
         const Opcodes square = torch.tensor("Float", {2, 2}, std::string(16, 'x'));
         Checkpoint(out).optimizer(
             0, {{std::string(kFlat), py_list({square})}, {"partition_count", py_int(2)}}, torch);
       }},
      {"stage_does_not_fit", "zero_stage does not fit", [](const auto& out) {
         TorchWriter torch;
         auto states = empty_groups(torch, kFlat);
         states.emplace_back("zero_stage", py_int(3));
         Checkpoint(out).optimizer(0, states, torch);
       }},
      {"no_partition_count", "no partition_count", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{std::string(kFlat), py_list({})}});
       }},
      {"partition_count_is_text", "partition_count is not a number", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{std::string(kFlat), py_list({})}, {"partition_count", py_str("2")}});
       }},
      {"partition_count_zero", "partition_count 0", [](const auto& out) {
         Checkpoint(out).optimizer(0, {{std::string(kFlat), py_list({})}, {"partition_count", py_int(0)}});
       }},
      {"partition_count_huge", "and perhaps more", [](const auto& out) {
         Checkpoint(out).optimizer(
             0, {{std::string(kFlat), py_list({})}, {"partition_count", py_int(std::int64_t{1} << 60)}});
       }},
      {"negative_alignment", "param_alignment_paddings are not numbers", [](const auto& out) {
         TorchWriter torch;
         auto states = empty_groups(torch, kFlat);
         states.emplace_back("param_alignment_paddings", py_list({py_ints({-8})}));
         Checkpoint(out).optimizer(0, states, torch);
       }},
      {"alignment_of_other_parameters", "group 0: 1 alignment paddings for 2 parameters", [](const auto& out) {
         const Checkpoint checkpoint(out);
         for (const std::int64_t rank : {0, 1}) {
           TorchWriter torch;
           auto states = empty_groups(torch, kFlat);
           states.emplace_back("param_alignment_paddings", py_list({py_ints({0}), py_ints({0})}));
           checkpoint.optimizer(rank, states, torch);
         }
       }},
      {"alignment_overflows", "group 0: more elements than there can be", [](const auto& out) {
         const Checkpoint checkpoint(out);
         constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
         for (const std::int64_t rank : {0, 1}) {
           TorchWriter torch;
           auto states = empty_groups(torch, kFlat);
           states.emplace_back("param_alignment_paddings",
                               py_list({py_ints({kMost, 0}), py_ints({0})}));
           checkpoint.optimizer(rank, states, torch);
         }
       }},
      {"offloaded_flat", "group 0 is empty on all ranks", [](const auto& out) {
         const Checkpoint checkpoint(out);
         for (const std::int64_t rank : {0, 1}) {
           TorchWriter torch;
           const auto states = empty_groups(torch, kFlat);
           checkpoint.optimizer(rank, states, torch);
         }
       }},
      {"too_few_elements", "but its parameters need 22", [](const auto& out) {
         const Checkpoint checkpoint(out);
         ZeroRun other = checkpoint.run();
         other.groups[0].pop_back();
         for (const std::int64_t rank : {0, 1}) checkpoint.optimizer_of(other, rank);
       }},
      {"too_many_elements", "but its parameters have only 22", [](const auto& out) {
         const Checkpoint checkpoint(out);
         ZeroRun other = checkpoint.run();
         other.groups[0].push_back({"d", {9}});
         for (const std::int64_t rank : {0, 1}) checkpoint.optimizer_of(other, rank);
       }},
      {"groups_of_another_model", "2 groups of parameters, but param_shapes has 1", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.model({{"param_shapes", py_list({py_dict({{"a", torch_size({22})}})})}});
       }},
      {"offloaded_partitioned", "offloaded to NVMe", [](const auto& out) {
         const Checkpoint checkpoint(out, 3);
         TorchWriter torch;
         checkpoint.optimizer(1, empty_groups(torch, "fp32_flat_groups"), torch);
       }},
      {"other_elements_partitioned", "sub-group 0 has 8 elements, its parameters 12", [](const auto& out) {
         const Checkpoint checkpoint(out, 3);
         ZeroRun other = checkpoint.run();
         other.groups[0].pop_back();
         checkpoint.optimizer_of(other, 1);
       }},
      {"partitions_overflow", "sub-group 0: more elements than there can be", [](const auto& out) {
         const Checkpoint checkpoint(out, 3);
         std::vector<std::pair<std::string, Opcodes>> shapes;
         // Each can be; together, and cut in two, they are more than 2^63 elements.
         for (int i = 0; i < 200; ++i) {
           shapes.emplace_back(fmt::format("p{}", i), torch_size({(std::int64_t{1} << 57) - 8}));
         }
         checkpoint.model({{"param_shapes", py_list({py_dict(shapes), py_dict({})})}});
       }},
      // Each of 262,145 parts would be kept, and one rank's file is all ranks'.
      {"parts_of_one_file", "parameter \"p263\": 263000 parts on 1000 ranks with those of parameters before it, in files of ", [](const auto& out) {
         ZeroRun run;
         run.stage = 3;
         run.world = 1000;
         run.groups.emplace_back();
         for (int i = 1; i <= 300; ++i) run.groups[0].push_back({fmt::format("p{}", i), {1000}});
         const ZeroWriter writer(run);
         out.write("step/" + kRank0, writer.optimizer_file(0));
         for (int rank = 1; rank < 1000; ++rank) {
           fs::create_symlink(kRank0, out / ("step/" + ZeroWriter::optimizer_name(rank)));
         }
         out.write("step/" + writer.model_name(), writer.model_file());
       }},
  };
}

std::vector<Broken> model_file_cases() {
  const auto shapes_of = [](const Opcodes& shape) {
    return Changes{{"param_shapes", py_list({py_dict({{"a", shape}})})}};
  };
  return {
      {"no_model_file", "no mp_rank_00_model_states.pt beside", [](const auto& out) {
         Checkpoint(out).remove("mp_rank_00_model_states.pt");
       }},
      {"model_is_no_dictionary", "not a DeepSpeed model state: not a dictionary", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.write(checkpoint.writer().model_name(), TorchWriter().file(py_int(1)));
       }},
      {"model_of_something_else", "no buffer_names, param_shapes or module", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.write(checkpoint.writer().model_name(),
                          TorchWriter().file(py_dict({{"epoch", py_int(1)}})));
       }},
      {"no_shapes", "no param_shapes: nothing names", [](const auto& out) {
         Checkpoint(out).model({{"param_shapes", py_none()}});
       }},
      {"shapes_are_no_list", "param_shapes is not a list", [](const auto& out) {
         Checkpoint(out).model({{"param_shapes", py_int(1)}});
       }},
      {"shapes_are_no_dictionary", "param_shapes is not a dictionary of shapes", [](const auto& out) {
         Checkpoint(out).model({{"param_shapes", py_list({py_int(1)})}});
       }},
      {"shape_is_text", R"("a" has no possible shape)", [=](const auto& out) {
         Checkpoint(out).model(shapes_of(py_str("(5, 3)")));
       }},
      {"shape_overflows", R"("a" has no possible shape)", [=](const auto& out) {
         constexpr std::int64_t kMany = std::int64_t{1} << 40;
         Checkpoint(out).model(shapes_of(torch_size({kMany, kMany})));
       }},
      {"shape_of_too_many_dimensions", "has 65 dimensions (limit 64)", [=](const auto& out) {
         Checkpoint(out).model(shapes_of(torch_size(std::vector<std::int64_t>(65, 1))));
       }},
      {"name_in_two_groups", R"("a" is in two groups)", [](const auto& out) {
         const Opcodes group = py_dict({{"a", torch_size({1})}});
         Checkpoint(out).model({{"param_shapes", py_list({group, group})}});
       }},
      {"experts_in_the_model", "a mixture of experts", [](const auto& out) {
         Checkpoint(out).model({{"num_experts", py_ints({8})}});
       }},
      {"tensor_parallel", "slices of tensor parallelism", [](const auto& out) {
         Checkpoint(out).model(
             {{"checkpoint_parallel_dimensions",
               py_dict({{"pp_degree", py_int(1)}, {"tp_degree", py_int(2)}})}});
       }},
      {"tensor_parallel_layers", "layer_00-model_01-model_states.pt: slices", [](const auto& out) {
         Checkpoint(out).write("layer_00-model_01-model_states.pt", "x");
       }},
      {"tensor_parallel_module", "slices of tensor parallelism", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.model({{"mp_world_size", py_int(2)}});
         for (const std::int64_t rank : {0, 1}) {
           checkpoint.copy(ZeroWriter::optimizer_name(rank),
                           fmt::format("zero_pp_rank_{}_mp_rank_01_optim_states.pt", rank));
         }
         checkpoint.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
       }},
      {"the_same_parameter_in_two_stages", "slices of tensor parallelism", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.model({{"mp_world_size", py_int(2)}, {"module", py_none()}});
         for (const std::int64_t rank : {0, 1}) {
           checkpoint.copy(ZeroWriter::optimizer_name(rank),
                           fmt::format("zero_pp_rank_{}_mp_rank_01_optim_states.pt", rank));
         }
         checkpoint.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
       }},
      {"stages_of_two_kinds", "stage 1, but", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.model({{"mp_world_size", py_int(2)}, {"module", py_none()}});
         ZeroRun other = checkpoint.run();
         other.stage = 1;
         for (const std::int64_t rank : {0, 1}) {
           checkpoint.write(fmt::format("zero_pp_rank_{}_mp_rank_01_optim_states.pt", rank),
                            ZeroWriter(other).optimizer_file(rank));
         }
         checkpoint.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
       }},
      {"missing_stage", "one of 2 model-parallel ranks, but the files of rank 1 are missing", [](const auto& out) {
         Checkpoint(out).model({{"mp_world_size", py_int(2)}, {"module", py_none()}});
       }},
      {"missing_first_stage", "the files of model-parallel rank 0 are missing", [](const auto& out) {
         const Checkpoint checkpoint(out);
         for (const std::int64_t rank : {0, 1}) {
           const std::string name = ZeroWriter::optimizer_name(rank);
           checkpoint.copy(name, fmt::format("zero_pp_rank_{}_mp_rank_01_optim_states.pt", rank));
           checkpoint.remove(name);
         }
         checkpoint.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
         checkpoint.remove("mp_rank_00_model_states.pt");
       }},
      {"layers_alone_in_the_tag", "other: no *_optim_states.pt in it", [](const auto& out) {
         Checkpoint(out).out().write("other/layer_00-model_states.pt", "");
       }, {.tag = "other"}},
      {"layers_alone_in_the_latest_tag", "other: no *_optim_states.pt in it", [](const auto& out) {
         Checkpoint(out).out().write("other/layer_00-model_states.pt", "");
         out.write("latest", "other");
       }},
      {"layers_at_the_top", ".: no *_optim_states.pt in it", [](const auto& out) {
         Checkpoint(out).out().write("layer_01-model_states.pt", "");
       }},
      {"stage_without_optimizer", "no *_optim_states.pt of model-parallel rank 1", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.model({{"mp_world_size", py_int(2)}, {"module", py_none()}});
         checkpoint.copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt");
       }},
  };
}

Changes frozen(const Opcodes& fragments, const std::vector<std::int64_t>& shape = {3}) {
  return {{"frozen_param_shapes", py_dict({{"f", torch_size(shape)}})},
          {"frozen_param_fragments", fragments}};
}

/// A stage-3 checkpoint with a frozen parameter of three elements, whose part on rank 1 is `part`.
void write_frozen(const TemporaryDirectory& out,
                  const std::function<Opcodes(TorchWriter&)>& part) {
  const Checkpoint checkpoint(out, 3);
  TorchWriter first;
  const Opcodes mine = py_dict({{"f", first.tensor("Float", {2}, std::string(8, 'x'))}});
  checkpoint.model(frozen(mine), first);
  TorchWriter second;
  const Opcodes theirs = part(second);
  checkpoint.write(checkpoint.writer().model_name(1),
                   checkpoint.writer().model_file(frozen(theirs), second));
}

std::vector<Broken> frozen_cases() {
  return {
      {"frozen_tensor_missing", R"(frozen parameter "f": its tensor is missing)", [](const auto& out) {
         Checkpoint(out).model(frozen(py_dict({})));
       }},
      {"frozen_of_another_shape", R"(frozen parameter "f": shape [2], but)", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {2}, std::string(8, 'x'));
         Checkpoint(out).model(frozen(py_dict({{"f", tensor}})), torch);
       }},
      {"frozen_rank_missing", "zero_pp_rank_1_mp_rank_00_model_states.pt is missing, which has a part", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {2}, std::string(8, 'x'));
         Checkpoint(out, 3).model(frozen(py_dict({{"f", tensor}})), torch);
       }},
      {"frozen_part_missing", R"(frozen parameter "f" has no part here)", [](const auto& out) {
         write_frozen(out, [](TorchWriter&) { return py_dict({}); });
       }},
      {"frozen_part_not_flat", "its part is not a flat vector", [](const auto& out) {
         write_frozen(out, [](TorchWriter& torch) {
           return py_dict({{"f", torch.strided("Float", {2}, {2}, 0, 3, std::string(12, 'x'))}});
         });
       }},
      {"frozen_part_of_another_dtype", R"(frozen parameter "f" is BF16, on rank 0 F32)", [](const auto& out) {
         write_frozen(out, [](TorchWriter& torch) {
           return py_dict({{"f", torch.tensor("BFloat16", {2}, std::string(4, 'x'))}});
         });
       }},
      {"frozen_part_quantized", "quantized to int8", [](const auto& out) {
         write_frozen(out, [](TorchWriter& torch) {
           return py_dict({{"f", torch.tensor("Char", {2}, std::string(2, 'x'))}});
         });
       }},
      {"frozen_part_offloaded", "0 elements here (1/2 of 3 are 2): offloaded", [](const auto& out) {
         write_frozen(out, [](TorchWriter& torch) {
           return py_dict({{"f", torch.tensor("Float", {0}, "")}});
         });
       }},
      {"frozen_part_too_long", "4 elements here (1/2 of 3 are 2)", [](const auto& out) {
         write_frozen(out, [](TorchWriter& torch) {
           return py_dict({{"f", torch.tensor("Float", {4}, std::string(16, 'x'))}});
         });
       }},
  };
}

std::vector<Broken> tag_cases() {
  return {
      {"no_such_tag", R"(no tag "other" (it has step))",
       [](const auto& out) { Checkpoint(out).write("x", ""); },
       {.tag = "other", .key = {}, .config = {}}},
      {"latest_is_absent", R"(latest: names the tag "gone", which is absent)", [](const auto& out) {
         const Checkpoint checkpoint(out);
         out.write("latest", "gone\n");
       }},
      {"several_tags", "no file latest says which tag to open (choose one: other, step)", [](const auto& out) {
         const Checkpoint checkpoint(out);
         checkpoint.writer().write(out, "other");
       }},
      {"latest_leads_out", R"(latest: names the tag "../step", which leads out of the checkpoint)", [](const auto& out) {
         const Checkpoint checkpoint(out);
         out.write("latest", "../step\n");
       }},
      {"latest_is_absolute", R"(latest: names the tag "/step", which leads out)", [](const auto& out) {
         const Checkpoint checkpoint(out);
         out.write("latest", "/step");
       }},
      {"tag_leads_out", R"(--tag names the tag "a/../step", which leads out of the checkpoint)",
       [](const auto& out) { Checkpoint(out).write("x", ""); }, {.tag = "a/../step"}},
      {"key_for_zero", "takes no key", [](const auto& out) { Checkpoint(out).write("x", ""); },
       {.tag = {}, .key = "module", .config = {}}},
  };
}

/// A universal checkpoint of the small run in the tag "u", without the masters in `without`.
void write_universal(const TemporaryDirectory& out, const Changes& changes = {},
                     const std::map<std::string, std::string>& masters = {},
                     const std::string& model = "mp_rank_00_model_states.pt") {
  const ZeroWriter writer(small_run(2));
  out.write("u/" + model, writer.model_file(changes));
  for (const auto& group : small_run(2).groups) {
    for (const ZeroParameter& parameter : group) {
      TorchWriter torch;
      const Opcodes whole = torch.tensor("Float", parameter.shape, writer.value(parameter.name));
      const auto other = masters.find(parameter.name);
      if (other != masters.end() && other->second.empty()) continue;
      out.write(fmt::format("u/zero/{}/fp32.pt", parameter.name),
                other == masters.end() ? torch.file(py_dict({{"param", whole}})) : other->second);
    }
  }
}

/// The same of two ranks of tensor parallelism.
void write_slices(const TemporaryDirectory& out, const std::map<std::string, std::string>& masters,
                  Changes changes = {}) {
  changes["mp_world_size"] = py_int(2);
  write_universal(out, changes, masters);
  write_universal(out, changes, masters, "mp_rank_01_model_states.pt");
}

std::string master(const std::vector<std::int64_t>& shape, bool vocabulary = false) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) numel *= extent;
  TorchWriter torch;
  std::vector<std::pair<std::string, Opcodes>> entries = {
      {"cat_dim", py_int(0)},
      {"param",
       torch.tensor("Float", shape, std::string(static_cast<std::size_t>(numel) * 4, 'x'))}};
  if (vocabulary) entries.emplace_back("vocab_tensor", py_int(1));
  return torch.file(py_dict(entries));
}

std::vector<Broken> universal_cases() {
  return {
      {"universal_without_model", "no *_model_states.pt, which has", [](const auto& out) {
         write_universal(out);
         fs::remove(out / "u/mp_rank_00_model_states.pt");
       }},
      {"universal_without_shapes", "no param_shapes", [](const auto& out) {
         write_universal(out, {{"param_shapes", py_none()}});
       }},
      {"universal_with_experts", "a mixture of experts", [](const auto& out) {
         write_universal(out, {{"num_experts", py_ints({8})}});
       }},
      {"universal_stage_missing", "one of 2 model-parallel ranks, but only 1", [](const auto& out) {
         write_universal(out, {{"mp_world_size", py_int(2)}});
       }},
      {"universal_master_missing", "u/zero/b/fp32.pt: missing, but", [](const auto& out) {
         write_universal(out, {}, {{"b", ""}});
       }},
      {"universal_slice_without_gradient", "parameter \"b\" never got a gradient", [](const auto& out) {
         write_slices(out, {{"a", master({10, 3})}});
         for (const std::string name : {"a", "c"}) {
           out.write("u/zero/" + name + "/exp_avg.pt", "x");
         }
       }},
      {"universal_of_another_shape", "u/zero/b/fp32.pt: shape [3], but param_shapes says [7]", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {3}, std::string(12, 'x'));
         write_universal(out, {}, {{"b", torch.file(py_dict({{"param", tensor}}))}});
       }},
      {"universal_larger_than_its_slices", "u/zero/b/fp32.pt: shape [15], but param_shapes says [7]", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {15}, std::string(60, 'x'));
         write_slices(out, {{"b", torch.file(py_dict({{"param", tensor}}))}});
       }},
      {"universal_smaller_than_its_slices", "u/zero/b/fp32.pt: shape [6], but param_shapes says [7]", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {6}, std::string(24, 'x'));
         write_slices(out, {{"b", torch.file(py_dict({{"param", tensor}}))}});
       }},
      {"universal_slices_that_are_frozen", "a slice of tensor parallelism, which the converter does not join", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.tensor("Float", {14}, std::string(56, 'x'));
         write_slices(out, {{"b", torch.file(py_dict({{"param", tensor}}))}}, frozen(py_dict({})));
       }},
      {"universal_slices_of_what_is_frozen_alone", "a slice of tensor parallelism, which the converter does not join", [](const auto& out) {
         write_slices(out, {}, frozen(py_dict({})));
       }},
      {"universal_not_flat", "u/zero/b/fp32.pt: not a flat vector", [](const auto& out) {
         TorchWriter torch;
         const Opcodes tensor = torch.strided("Float", {7}, {2}, 0, 13, std::string(52, 'x'));
         write_universal(out, {}, {{"b", torch.file(tensor)}});
       }},
      {"universal_repeats_more_elements_than_can_be_counted", "more than 288230376151711744 elements", [](const auto& out) {
         // 65 of 2^57 elements, each one float over and over: together more than 2^63.
         const std::vector<std::int64_t> shape = {std::int64_t{1} << 57};
         std::vector<std::pair<std::string, Opcodes>> shapes;
         for (int i = 0; i < 65; ++i) {
           const std::string name = fmt::format("p{}", i);
           shapes.emplace_back(name, torch_size(shape));
           TorchWriter torch;
           const Opcodes repeated = torch.strided("Float", shape, {0}, 0, 1, "wxyz");
           out.write("u/zero/" + name + "/fp32.pt", torch.file(py_dict({{"param", repeated}})));
         }
         write_universal(out, {{"param_shapes", py_list({py_dict(shapes)})}});
       }},
      {"universal_frozen_rank_missing", "the model file of rank 1 is missing", [](const auto& out) {
         write_universal(out, frozen(py_dict({})), {}, "zero_pp_rank_0_mp_rank_00_model_states.pt");
       }},
      {"key_for_universal", "takes no key", [](const auto& out) { write_universal(out); },
       {.tag = {}, .key = "module", .config = {}}},
  };
}
// clang-format on

const std::vector<Broken>& broken_zero() {
  static const std::vector<Broken> all = [] {
    std::vector<Broken> joined;
    for (auto&& part :
         {rank_file_cases(), model_file_cases(), frozen_cases(), tag_cases(), universal_cases()}) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }();
  return all;
}

class BrokenZero : public testing::TestWithParam<std::size_t> {};

TEST_P(BrokenZero, IsRefusedWithItsMessage) {
  expect_refused(broken_zero()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenZero, testing::Range(std::size_t{0}, broken_zero().size()),
                         [](const auto& test) { return broken_zero()[test.param].name; });

TEST(BrokenZeroCorpus, ReachesEveryErrorText) {
  const auto wanted = [](const std::string& name) {
    return name.starts_with("deepspeed") || name.starts_with("zero") ||
           name.starts_with("universal");
  };
  expect_all_errors_reached(broken_zero(), wanted, 60);
}

TEST(BrokenZeroCorpus, TheCheckpointThatItBreaksIsGood) {
  for (const int stage : {1, 2, 3}) {
    const Broken good{"good", "", [&](const auto& out) { Checkpoint(out, stage).write("x", ""); }};
    EXPECT_EQ(message_of(good), "(no error)");
  }
  const Broken universal{"good", "", [](const auto& out) { write_universal(out); }};
  EXPECT_EQ(message_of(universal), "(no error)");
}

std::vector<std::int64_t> shape_of(const Catalog& catalog, std::string_view name) {
  const auto shape = catalog.tensor(*catalog.find(name)).shape;
  return {shape.begin(), shape.end()};
}

// ds_to_universal joins slices along one dimension, and cuts off what pads a vocabulary; the model
// files that it copies still have the shapes of slices.
TEST(Universal, HasTheShapesThatItsConverterMade) {
  const TemporaryDirectory joined;
  write_slices(joined, {{"a", master({10, 3})}, {"b", master({2, 7})}, {"c", master({7}, true)}});
  const Opened slices = open_source(joined.path());
  EXPECT_EQ(shape_of(*slices.catalog, "a"), (std::vector<std::int64_t>{10, 3}));
  EXPECT_EQ(shape_of(*slices.catalog, "b"), (std::vector<std::int64_t>{2, 7}));
  EXPECT_EQ(shape_of(*slices.catalog, "c"), std::vector<std::int64_t>{7});
  // Of multi-query attention all ranks have the keys and values.
  const TemporaryDirectory shared;
  write_slices(shared, {{"a", master({8, 3})}});
  EXPECT_EQ(shape_of(*open_source(shared.path()).catalog, "a"), (std::vector<std::int64_t>{8, 3}));
  // A file of that name by itself names no parameter.
  const TemporaryDirectory other;
  other.write("model.safetensors", safetensors_text({{"w", 1}}, 1));
  other.write("zero/fp32.pt", "x");
  EXPECT_TRUE(open_source(other.path()).catalog->find("w"));
  const TemporaryDirectory cut;
  write_universal(cut, {}, {{"a", master({4, 3}, true)}});
  EXPECT_EQ(shape_of(*open_source(cut.path()).catalog, "a"), (std::vector<std::int64_t>{4, 3}));
}

}  // namespace
}  // namespace ckfs
