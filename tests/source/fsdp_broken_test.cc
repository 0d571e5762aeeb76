// Files of FSDP ranks that are broken, incomplete, or of several runs: each is refused with its own
// message. Every message of these readers must be reached.
#include "source/broken.h"
#include "source/fsdp_writer.h"

namespace ckfs {
namespace {

using fsdp::Fields;
using Numbers = std::vector<std::int64_t>;

/// A model of one tensor "w" [4, 2] on two ranks, with rows of it each.
struct Ranks {
  int world = 2;
  int written = -1;  // ranks that have files; -1: all
  std::string folder = {};
  std::string name = "w";

  Numbers shape = {4, 2};   // that each rank says
  Numbers last_shape = {};  // the last rank; empty: the same
  Numbers local = {2, 2};
  std::string type = "Float";
  std::string dtype = "float32";
  std::vector<Opcodes> placements = {fsdp::shard(0)};
  std::optional<Opcodes> mesh = {};  // not the usual one
  std::function<Numbers(int)> place = [](int rank) { return Numbers{rank}; };
  Fields spec = {};                   // more of it
  std::optional<Opcodes> value = {};  // in place of the DTensor
  std::optional<Opcodes> last = {};   // the same of the last rank
  Fields more = {};                   // more tensors of the last rank
  bool last_has_none = false;

  void write(const TemporaryDirectory& out) const {
    for (int rank = 0; rank < (written < 0 ? world : written); ++rank) {
      const bool is_last = rank + 1 == world;
      TorchWriter torch;
      std::size_t bytes = type == "Float" ? 4 : 2;
      for (const std::int64_t extent : local) bytes *= static_cast<std::size_t>(extent);
      const Opcodes made = torch.tensor(type, local, std::string(bytes, 'x'));
      Opcodes tensor = fsdp::dtensor(
          made, fsdp::spec(mesh.value_or(fsdp::mesh({world}, place(rank))), placements, spec),
          is_last && !last_shape.empty() ? last_shape : shape, dtype);
      if (value) tensor = *value;
      if (is_last && last) tensor = *last;
      Fields state{{name, tensor}};
      if (is_last && last_has_none) state = {{"other", tensor}};
      if (is_last) state.insert(state.end(), more.begin(), more.end());
      out.write(folder + fsdp::file_name(world, rank), torch.file(py_dict(state)));
    }
  }
};

Opcodes plain(const Numbers& shape, std::int64_t stride = 0) {
  // On the storage that every file of Ranks has, with equal strides.
  return py_global("torch._utils", "_rebuild_tensor_v2") +
         py_tuple({py_tuple({py_str("storage"), py_global("torch", "FloatStorage"), py_str("0"),
                             py_str("cpu"), py_int(4)}) +
                       "Q",
                   py_int(0), fsdp::ints(shape), fsdp::ints(Numbers(shape.size(), stride)), "\x89",
                   py_none()}) +
         "R";
}

/// A tensor of a class without state that fits it.
Opcodes of_class(const Opcodes& type, const Opcodes& state) {
  return fsdp::wrapped(type, {4, 2}, state);
}
Opcodes dtensor_class() {
  return py_global("torch.distributed.tensor", "DTensor");
}
Opcodes sharded_class() {
  return py_global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor");
}

Opcodes sharded_of(const std::vector<Opcodes>& local, const std::vector<fsdp::ShardPlace>& all) {
  return fsdp::sharded(local, all, {4, 2});
}

void write_in(const TemporaryDirectory& out, const std::string& folder) {
  Ranks ranks;
  ranks.folder = folder;
  ranks.write(out);
}

/// With a mesh of these fields.
Ranks with_mesh(const Fields& fields) {
  Ranks ranks;
  ranks.mesh = fsdp::mesh_with(fields);
  return ranks;
}

// clang-format off
std::vector<Broken> fsdp_cases() {
  const auto of = [](std::string name, std::string message, const std::function<void(Ranks&)>& change) {
    return Broken{std::move(name), std::move(message), [change](const auto& out) {
                    Ranks ranks;
                    change(ranks);
                    ranks.write(out);
                  }};
  };
  const auto of_mesh = [](std::string name, std::string message, Fields fields) {
    return Broken{std::move(name), std::move(message), [fields](const auto& out) { with_mesh(fields).write(out); }};
  };
  const Fields no_place{{"_layout", fsdp::layout({2})}};
  return {
      // ---- which files
      {"a_rank_is_missing", "model_world_size_2_rank_0.pt: one of 2 ranks, and model_world_size_2_rank_1.pt is missing", [](const auto& out) {
         Ranks ranks; ranks.written = 1; ranks.write(out);
       }},
      {"many_ranks_are_missing", "model_world_size_4000000000_rank_8.pt are missing, and perhaps more", [](const auto& out) {
         out.write("model_world_size_4000000000_rank_0.pt", "x");
       }},
      {"a_rank_beyond_the_world", "model_world_size_2_rank_2.pt: rank 2 of 2 (0 to 1)", [](const auto& out) {
         Ranks().write(out);
         out.write("model_world_size_2_rank_2.pt", "x");
       }},
      {"a_world_of_no_ranks", "model_world_size_0_rank_0.pt: rank 0 of 0 (0 to -1)", [](const auto& out) {
         out.write("model_world_size_0_rank_0.pt", "x");
       }},
      {"another_world_size", "fsdp_config.json: world_size 4, but the files are of a world of 2 ranks", [](const auto& out) {
         Ranks().write(out);
         out.write("fsdp_config.json", R"({"world_size": 4})");
       }},
      {"a_configuration_that_is_no_json", "fsdp_config.json", [](const auto& out) {
         Ranks().write(out);
         out.write("fsdp_config.json", "{");
       }},
      {"two_worlds", "files of runs on 2 and on 3 ranks: move those of one of them away", [](const auto& out) {
         Ranks().write(out);
         out.write("model_world_size_3_rank_0.pt", "x");
       }},
      {"several_steps", "2 directories with files of ranks: a/, b/; open one of them", [](const auto& out) {
         write_in(out, "a/");
         write_in(out, "b/");
       }},
      {"no_such_step", "--step names step 7, which is not here: there are global_step_5/", [](const auto& out) {
         write_in(out, "global_step_5/");
       }, {.step = 7}},
      {"a_step_of_one", "one step, and --step 7 names another", [](const auto& out) { Ranks().write(out); }, {.step = 7}},
      {"the_last_step_is_absent", "latest_checkpointed_iteration.txt names step 9, which is not here", [](const auto& out) {
         write_in(out, "global_step_5/");
         out.write("latest_checkpointed_iteration.txt", "9");
       }},
      {"the_last_step_is_no_number", R"(names "release", which is not a step)", [](const auto& out) {
         write_in(out, "global_step_5/");
         out.write("latest_checkpointed_iteration.txt", "release");
       }},
      {"no_tag", "only DeepSpeed checkpoints have tags", [](const auto& out) { Ranks().write(out); },
       {.tag = "x", .key = {}, .config = {}}},
      {"an_item_of_an_orbax_checkpoint", "only Orbax checkpoints have items", [](const auto& out) { Ranks().write(out); },
       {.item = "x"}},

      // ---- what ranks say of one tensor
      of("other_shapes", R"(model_world_size_2_rank_1.pt: tensor "w": F32 [5, 2], but model_world_size_2_rank_0.pt has it as F32 [4, 2])",
         [](Ranks& ranks) { ranks.last_shape = {5, 2}; ranks.local = {2, 2}; ranks.placements = {fsdp::shard(0)};
                            ranks.last = fsdp::dtensor(plain({2, 2}), fsdp::spec(fsdp::mesh({2}, {1}), {fsdp::shard(0)}), {5, 2}); }),
      of("a_tensor_more", R"(model_world_size_2_rank_1.pt: tensor "v": model_world_size_2_rank_0.pt does not have it)",
         [](Ranks& ranks) { ranks.more = {{"v", plain({1})}}; }),
      of("another_tensor", R"(tensor "other": model_world_size_2_rank_0.pt does not have it)",
         [](Ranks& ranks) { ranks.last_has_none = true; }),
      {"a_tensor_less", R"(model_world_size_2_rank_1.pt: no tensor "v", which model_world_size_2_rank_0.pt has)", [](const auto& out) {
         TorchWriter torch;
         const Opcodes one = torch.tensor("Float", {1}, "wxyz");
         out.write(fsdp::file_name(2, 0), torch.file(py_dict({{"w", one}, {"v", one}})));
         out.write(fsdp::file_name(2, 1), torch.file(py_dict({{"w", one}})));
       }},
      of("whole_on_one_rank", R"(tensor "w": whole, but in model_world_size_2_rank_0.pt a DTensor)",
         [](Ranks& ranks) { ranks.last = plain({4, 2}); }),
      of("sharded_on_one_rank", R"(tensor "w": a ShardedTensor, but in model_world_size_2_rank_0.pt a DTensor)",
         [](Ranks& ranks) { ranks.last = sharded_of({}, {}); }),
      of("a_dtype_on_one_rank", R"(model_world_size_2_rank_1.pt: tensor "w": dtype "torch.float3", which ckfs does not have, but not in)",
         [](Ranks& ranks) { ranks.last = fsdp::dtensor(plain({2, 2}), fsdp::spec(fsdp::mesh({2}, {1}), {fsdp::shard(0)}), {4, 2}, "float3"); }),
      of("other_lists_of_shards", "its metadata list other shards than those in model_world_size_2_rank_0.pt",
         [](Ranks& ranks) { ranks.value = sharded_of({}, {}); ranks.last = sharded_of({}, {{{0, 0}, {4, 2}}}); }),
      of("the_same_rows_twice", R"(tensor "w": the 2 ranks have 4 elements of it together, its shape [4, 2] has 8)",
         [](Ranks& ranks) { ranks.place = [](int) { return Numbers{0}; }; }),
      of("no_rank_has_shards", R"(tensor "w": the 2 ranks have 0 elements of it together, its shape [4, 2] has 8)",
         [](Ranks& ranks) { ranks.value = sharded_of({}, {}); }),
      {"shards_overlap", R"(the parts of rank 0, [3, 2] from [0, 0], and of rank 1, [3, 2] from [1, 0], overlap)", [](const auto& out) {
         const std::vector<fsdp::ShardPlace> all{{{0, 0}, {3, 2}}, {{1, 0}, {3, 2}}};
         for (int rank = 0; rank < 2; ++rank) {
           TorchWriter torch;
           out.write(fsdp::file_name(2, rank), torch.file(py_dict({{"w", sharded_of({fsdp::local_shard(
               torch.tensor("Float", {3, 2}, fsdp::floats(0, 6)), all[static_cast<std::size_t>(rank)])}, all)}})));
         }
       }},
      {"shards_that_form_no_grid", "parts that form no grid (limit 4096)", [](const auto& out) {
         // A pinwheel: every plane goes through one of its four arms.
         std::vector<fsdp::ShardPlace> all{{{0, 0}, {1, 65}}, {{0, 65}, {65, 1}}, {{65, 1}, {1, 65}}, {{1, 0}, {65, 1}}};
         for (std::int64_t i = 0; i < 64 * 64; ++i) all.push_back({{1 + i / 64, 1 + i % 64}, {1, 1}});
         TorchWriter torch;
         std::vector<Opcodes> local;
         for (const fsdp::ShardPlace& place : all) local.push_back(fsdp::local_shard(plain(place.sizes), place));
         const Opcodes storage = torch.tensor("Float", {4}, std::string(16, 'x'));
         const std::string file = py_dict({{"w", fsdp::sharded(local, {}, {66, 66})}});
         out.write(fsdp::file_name(1, 0), torch.file(storage + "0" + file));
       }},
      of("flattened_parameters", R"(tensor "model.layers.0.flat_param": parameters that FSDP flattened into one)",
         [](Ranks& ranks) { ranks.name = "model.layers.0._fsdp_wrapped_module.flat_param"; }),
      of("two_keys_of_one_name", R"(tensor "w": two keys make this name)",
         [](Ranks& ranks) { ranks.more = {{"_fsdp_wrapped_module.w", plain({1})}}; }),
      of("nothing_to_show", "none of its 1 tensors can be shown", [](Ranks& ranks) { ranks.dtype = "float3"; }),
      of("no_such_key", R"(no key "model")", [](Ranks&) {}),
      of("a_sparse_local_part", "none of its 1 tensors can be shown", [](Ranks& ranks) {
        ranks.value = fsdp::dtensor(py_global("torch._utils", "_rebuild_sparse_tensor") + ")R",
                                    fsdp::spec(fsdp::mesh({2}, {1}), {fsdp::shard(0)}), {4, 2}); }),
      {"parts_refer_to_each_other", "so often that reading it needs more than", [](const auto& out) {
         // Forty tensors with one list of six hundred times the same shard.
         const Numbers zeros(64, 0), ones(64, 1);
         const Opcodes shard = fsdp::shard_metadata({zeros, ones}) + "q\2" "0";
         const Opcodes metadata = fsdp::slots("ShardedTensorMetadata", {
             {"shards_metadata", py_list(std::vector<Opcodes>(600, "h\2"))}, {"size", torch_size(ones)}});
         Fields state;
         for (int i = 0; i < 40; ++i) {
           state.emplace_back(std::to_string(i), fsdp::wrapped(sharded_class(), ones, py_tuple({py_list({}), "h\1"})));
         }
         out.write(fsdp::file_name(1, 0), TorchWriter().file(shard + metadata + "q\1" "0" + py_dict(state)));
       }},

      // ---- a DTensor
      of("another_class", R"(an object of "torchao.Float8Tensor", which ckfs cannot join)", [&](Ranks& ranks) {
        ranks.value = of_class(py_global("torchao", "Float8Tensor"), py_none()); }),
      of("a_wrapper_without_a_shape", "a wrapped tensor without a shape", [&](Ranks& ranks) {
        ranks.value = py_global("torch._tensor", "_rebuild_from_type_v2") +
            py_tuple({py_global("torch._utils", "_rebuild_wrapper_subclass"), dtensor_class(), py_tuple({py_none()}), py_none()}) + "R"; }),
      of("a_negative_shape", "its shape is not a possible shape", [](Ranks& ranks) { ranks.shape = {-4, 2}; }),
      of("too_many_dimensions", "65 dimensions (limit 64)", [](Ranks& ranks) { ranks.shape = Numbers(65, 1); }),
      of("a_dtensor_without_parts", "a DTensor without _local_tensor, mesh and placements", [&](Ranks& ranks) {
        ranks.value = of_class(dtensor_class(), py_tuple({py_none(), py_none()})); }),
      of("another_shape_in_its_metadata", "shape [4, 2], but its tensor_meta says [4, 3]", [](Ranks& ranks) {
        ranks.spec = {{"tensor_meta", py_global("torch", "TensorMeta") + py_tuple({torch_size({4, 3})}) + "\x81"}}; }),
      of("a_sum_over_ranks", R"(tensor "w": placement Partial: its value is a sum over ranks)", [](Ranks& ranks) {
        ranks.placements = {fsdp::placement("Partial", {{"reduce_op", py_str("sum")}})}; }),
      of("a_sum_of_torch_2_4", "placement _Partial: its value is a sum over ranks", [](Ranks& ranks) {
        ranks.placements = {fsdp::placement("_Partial")}; }),
      of("an_unknown_placement", R"(placement "torch.distributed.tensor.placement_types.Ragged", which ckfs does not know)",
         [](Ranks& ranks) { ranks.placements = {fsdp::placement("Ragged")}; }),
      of("a_dimension_that_is_not_there", "placement Shard of no dimension of [4, 2]", [](Ranks& ranks) {
        ranks.placements = {fsdp::shard(2)}; }),
      of("a_split_into_none", "placement _StridedShard of no dimension", [](Ranks& ranks) {
        ranks.placements = {fsdp::strided(0, 0)}; }),
      of("too_many_placements", "17 placements (limit 16)", [](Ranks& ranks) {
        ranks.placements = std::vector<Opcodes>(17, fsdp::replicate()); }),
      of("placements_of_another_mesh", "2 placements on a mesh [2]", [](Ranks& ranks) {
        ranks.placements = {fsdp::shard(0), fsdp::shard(0)}; }),
      of("a_split_factor_of_nothing", "a strided shard along axis 0 of the mesh [2] with split_factor 2, which the axes behind it do not make",
         [](Ranks& ranks) { ranks.placements = {fsdp::strided(0, 2)}; }),
      of("an_order_of_other_axes", "its shard_order says that axes [] of the mesh divide dimension 0, its placements say [0]",
         [](Ranks& ranks) { ranks.spec = {{"shard_order", py_tuple({py_tuple({py_int(0), fsdp::ints({})})})}}; }),
      of("an_order_of_no_dimension", "a shard_order that names no dimension and axes", [](Ranks& ranks) {
        ranks.spec = {{"shard_order", py_tuple({py_tuple({py_int(2), fsdp::ints({0})})})}}; }),
      of("an_order_of_no_axis", "a shard_order with axis 1 of a mesh of 1 axes", [](Ranks& ranks) {
        ranks.spec = {{"shard_order", py_tuple({py_tuple({py_int(0), fsdp::ints({1})})})}}; }),
      of("a_long_order", "a shard_order of 17 entries", [&](Ranks& ranks) {
        ranks.spec = {{"shard_order", py_tuple(std::vector<Opcodes>(17, py_none()))}}; }),
      of("a_part_of_another_dtype", "F32, but its part here is BF16", [](Ranks& ranks) { ranks.type = "BFloat16"; }),
      of("a_part_of_another_size", R"(model_world_size_2_rank_0.pt: tensor "w": a part of [3, 2] here, but its placements give rank 0 [2, 2])",
         [](Ranks& ranks) { ranks.local = {3, 2}; }),
      of("a_part_beyond_its_storage", "reach beyond storage", [](Ranks& ranks) {
        ranks.value = fsdp::dtensor(plain({9}, 1), fsdp::spec(fsdp::mesh({2}, {0}), {fsdp::shard(0)}), {18}); }),

      // ---- its mesh
      of_mesh("a_mesh_of_nothing", "a mesh without a shape", {}),
      of_mesh("a_layout_without_axes", "a mesh whose layout has no axes, or more than 16",
              {{"_layout", py_object("torch", "_MeshLayout", py_dict({}))}}),
      of_mesh("an_axis_without_a_size", "a mesh with an axis of no size",
              {{"_layout", py_object("torch", "_MeshLayout", py_dict({{"shape", py_tuple({py_str("x")})}}))}}),
      of_mesh("a_mesh_that_is_no_tensor", "a mesh of ranks: not a tensor", {{"mesh", py_none()}}),
      of_mesh("a_mesh_of_too_many_axes", "a mesh of more than 16 axes", {{"mesh", plain(Numbers(17, 1))}}),
      of_mesh("a_mesh_of_no_devices", "a mesh [0] of more devices than the 2 ranks, or none",
              {{"_layout", py_object("torch", "_MeshLayout", py_dict({{"shape", py_int(0)}}))}}),
      of_mesh("a_mesh_of_too_many_devices", "a mesh [3] of more devices than the 2 ranks, or none",
              {{"_layout", fsdp::layout({3})}}),
      of_mesh("a_place_of_other_axes", "a mesh [2] without this rank's place",
              {{"_layout", fsdp::layout({2})}, {"_coordinate_on_dim", py_ints({0, 0})}}),
      of_mesh("a_place_beyond_the_mesh", "place [2] in a mesh [2]",
              {{"_layout", fsdp::layout({2})}, {"_coordinate_on_dim", py_ints({2})}}),
      of_mesh("neither_place_nor_ranks", "a mesh without this rank's place and a list of ranks", no_place),
      of_mesh("ranks_that_are_no_tensor", "the ranks of a mesh: not a tensor",
              {{"_layout", fsdp::layout({2})}, {"_rank_map", py_none()}}),
      of_mesh("ranks_that_are_no_integers", "a list of ranks that is not of the 2 devices of its mesh",
              {{"_layout", fsdp::layout({2})}, {"_rank_map", plain({2})}}),
      {"a_mesh_without_the_rank", "a mesh that rank 1 is not in", [](const auto& out) {
         for (int rank = 0; rank < 2; ++rank) {
           TorchWriter torch;
           const Opcodes devices = fsdp::mesh_with({{"mesh", fsdp::ranks(torch, {1})}});
           out.write(fsdp::file_name(2, rank), torch.file(py_dict({{"w", fsdp::dtensor(
               torch.tensor("Float", {1}, "wxyz"), fsdp::spec(devices, {fsdp::shard(0)}), {1})}})));
         }
       }},
      {"strides_that_are_not_simple", "a mesh [2] that says neither this rank's place nor simple strides", [](const auto& out) {
         TorchWriter torch;
         const Opcodes layout = py_object("torch", "_MeshLayout", py_dict({{"shape", fsdp::ints({2})}}));
         const Opcodes devices = fsdp::mesh_with({{"_layout", layout}, {"_rank_map", fsdp::ranks(torch, {2})}});
         out.write(fsdp::file_name(2, 0), torch.file(py_dict({{"w", fsdp::dtensor(
             torch.tensor("Float", {1}, "wxyz"), fsdp::spec(devices, {fsdp::shard(0)}), {2})}})));
         out.write(fsdp::file_name(2, 1), "x");
       }},

      // ---- a ShardedTensor
      of("sharded_without_metadata", "a ShardedTensor without its metadata", [&](Ranks& ranks) {
        ranks.value = of_class(sharded_class(), py_tuple({py_list({}), py_none()})); }),
      of("sharded_of_another_size", "shape [4, 2], but its metadata say [4, 3]", [](Ranks& ranks) {
        ranks.value = of_class(sharded_class(), py_tuple({py_list({}), fsdp::slots("M", {
            {"size", torch_size({4, 3})}, {"shards_metadata", py_list({})}})})); }),
      of("a_shard_of_nothing", "a local shard without tensor and metadata", [&](Ranks& ranks) {
        ranks.value = sharded_of({py_none()}, {}); }),
      of("a_shard_without_a_place", "a shard without offsets and sizes", [](Ranks& ranks) {
        ranks.value = sharded_of({fsdp::slots("Shard", {{"tensor", plain({1})}, {"metadata", py_none()}})}, {}); }),
      of("a_shard_beyond_the_shape", "a shard at [3, 0] of [2, 2] in shape [4, 2]", [](Ranks& ranks) {
        ranks.value = sharded_of({}, {{{3, 0}, {2, 2}}}); }),
      of("a_shard_of_another_shape", "a part of [1, 1] here, but its metadata say [2, 2]", [](Ranks& ranks) {
        ranks.value = sharded_of({fsdp::local_shard(plain({1, 1}), {{0, 0}, {2, 2}})}, {}); }),
  };
}
// clang-format on

const std::vector<Broken>& broken_fsdp() {
  static const std::vector<Broken> all = [] {
    std::vector<Broken> cases = fsdp_cases();
    for (Broken& broken : cases) {
      if (broken.name == "no_such_key") broken.options.key = "model";
    }
    // The file alone is opened, not its directory.
    return cases;
  }();
  return all;
}

class BrokenFsdp : public testing::TestWithParam<std::size_t> {};

TEST_P(BrokenFsdp, IsRefusedWithItsMessage) {
  expect_refused(broken_fsdp()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenFsdp, testing::Range(std::size_t{0}, broken_fsdp().size()),
                         [](const auto& test) { return broken_fsdp()[test.param].name; });

TEST(BrokenFsdpCorpus, ReachesEveryErrorText) {
  const std::set<std::string> exempt = {
      // A file by itself: fsdp_ranks_test.cc.
      "{}: rank {} of {}: it has its part of each tensor alone (open the directory, with the files "
      "of all ranks)",
      // Shared nodes, of several files: fsdp_ranks_test.cc.
      "{}: tensor {}: its parts and those before it need more than {} bytes, which the files' "
      "headers of {} bytes cannot mean",
      // Only where a pickle's budget is at its end, which is the error then.
      "too many meshes",
  };
  const auto wanted = [](const std::string& name) {
    return name.starts_with("fsdp") || name.starts_with("device_mesh");
  };
  expect_all_errors_reached(broken_fsdp(), wanted, 40, exempt);
}

TEST(BrokenFsdpCorpus, TheCheckpointThatItBreaksIsGood) {
  EXPECT_EQ(message_of({"good", "", [](const auto& out) { Ranks().write(out); }}), "(no error)");
}

}  // namespace
}  // namespace ckfs
