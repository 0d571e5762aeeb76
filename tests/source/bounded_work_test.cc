// Small files that ask for much: parts of a pickle that many others share. What opening one costs
// (steps of its walks, bytes that it ever asks for) is in proportion to the bytes it has, whatever
// shape its references have.
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <random>

#include "base/units.h"
#include "source/deepspeed/deepspeed_states.h"
#include "source/opened.h"
#include "source/orbax_writer.h"
#include "source/torch/dcp_metadata.h"
#include "source/torch/torch_state_dict.h"
#include "source/torch_writer.h"
#include "source/zero_writer.h"
#include "support/heap_counters.h"
#include "support/memory_source.h"
#include "support/safetensors_text.h"
#include "support/sanitized.h"

namespace ckfs {
namespace {

using std::string_literals::operator""s;

Opcodes get(int number) {
  return {'h', static_cast<char>(number)};
}

/// The object kept in the memo, and nothing on the stack.
Opcodes keep(const Opcodes& object, int number) {
  return object + "q" + static_cast<char>(number) + "0";
}

Opcodes times(std::size_t count, const Opcodes& code) {
  Opcodes all;
  for (std::size_t i = 0; i < count; ++i) all += code;
  return all;
}

/// `open`, then `unit` with the number of each repetition before it as a string, then `close`.
Opcodes numbered(std::size_t count, const Opcodes& open, const Opcodes& unit,
                 const Opcodes& close) {
  Opcodes all = open;
  for (std::size_t i = 0; i < count; ++i) all += py_str(std::to_string(i)) + unit;
  return all + close;
}

Opcodes ones(std::size_t count) {
  return "(" + times(count, "K\1") + "t";
}

Opcodes metadata_object(const std::string& name, const Opcodes& state) {
  return py_object("torch.distributed.checkpoint.metadata", name, state);
}

std::string rebuild(const Opcodes& shape, const Opcodes& stride, const Opcodes& metadata = "") {
  return get(90) + "(" + get(91) + "K\0"s + shape + stride + "\x89}" + metadata + "tR";
}

/// What rebuild() refers to.
Opcodes torch_parts() {
  return keep(py_global("torch._utils", "_rebuild_tensor_v2"), 90) +
         keep(py_tuple({py_str("storage"), py_global("torch", "FloatStorage"), py_str("0"),
                        py_str("cpu"), py_int(16)}) +
                  "Q",
              91);
}

struct Cost {
  std::uint64_t input = 0, work = 0;
  std::size_t most = 0;
  std::string message;
};

/// Opens what `write` puts into a directory.
Cost cost_of(const std::function<void(const TemporaryDirectory&)>& write) {
  const TemporaryDirectory directory;
  write(directory);
  Cost cost;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.is_regular_file()) cost.input += entry.file_size();
  }
  const heap_meter::Span memory;
  cost.message = error_of(directory.path(), {});
  EXPECT_GT(heap_meter::now, 0U) << "nothing counts memory here";
  cost.most = memory.most();
  cost.work = memory.sum();
  return cost;
}

std::string torch_file(const Opcodes& root) {
  TorchWriter torch;
  (void)torch.tensor("Float", {16}, std::string(64, 'x'));
  return torch.file(root);
}

using Row = std::function<void(const TemporaryDirectory&, std::size_t)>;

void write_metadata(const TemporaryDirectory& out, const Opcodes& before, const Opcodes& tensors,
                    const Opcodes& places) {
  const Opcodes root = metadata_object("Metadata", "}(" + py_str("state_dict_metadata") + tensors +
                                                       py_str("storage_data") + places + "u");
  out.write(".metadata", "\x80\x02" + before + root + ".");
  out.write("a.distcp", torch_file(py_none()));
}

/// `n` is about the size of the file; half of it is what the other half refers to.
const std::vector<std::pair<std::string, Row>>& rows() {
  static const std::vector<std::pair<std::string, Row>> all = {
      {"shapes_of_too_many_dimensions",
       [](const auto& out, std::size_t n) {
         out.write("m.pt", torch_file(torch_parts() + keep(ones(n / 4), 1) +
                                      numbered(n / 50, "}(", rebuild(get(1), get(1)), "u")));
       }},
      {"many_keys_of_one_dictionary",
       [](const auto& out, std::size_t n) {
         out.write("m.pt", torch_file(torch_parts() + keep(rebuild(ones(1), ones(1)), 1) +
                                      keep(numbered(n / 22, "}(", get(1), "u"), 2) +
                                      numbered(n / 22, "}(", get(2), "u")));
       }},
      {"one_long_key_before_many",
       [](const auto& out, std::size_t n) {
         out.write("m.pt", torch_file(torch_parts() + keep(rebuild(ones(1), ones(1)), 1) + "}(" +
                                      py_str(std::string(n / 2, 'k')) +
                                      numbered(n / 22, "}(", get(1), "u") + "u"));
       }},
      // What is left out is named with the key before it.
      {"one_long_key_before_what_is_left_out",
       [](const auto& out, std::size_t n) {
         out.write("m.pt", torch_file(torch_parts() + "}(" + py_str(std::string(n / 2, 'k')) +
                                      "}(" + py_str("w") + rebuild(ones(1), ones(1)) + "u" +
                                      py_str("t") + "}(" + py_str("w") + rebuild(ones(1), ones(1)) +
                                      numbered(n / 22, "", "N", "") + "uu"));
       }},
      {"one_dictionary_looked_up_for_each_tensor",
       [](const auto& out, std::size_t n) {
         out.write(
             "m.pt",
             torch_file(torch_parts() + keep("}(" + times(n / 16, py_str("ab") + "N") + "u", 1) +
                        numbered(n / 60, "}(", rebuild(ones(1), ones(1), get(1)), "u")));
       }},
      {"one_dictionary_below_many_keys",
       [](const auto& out, std::size_t n) {
         out.write("m.pt",
                   torch_file(torch_parts() + keep(numbered(n / 20, "}(", "N", "u"), 1) + "}(" +
                              py_str("t") + numbered(1, "}(", rebuild(ones(1), ones(1)), "u") +
                              numbered(n / 22, "", get(1), "") + "u"));
       }},
      {"tensors_of_the_same_bytes",
       [](const auto& out, std::size_t n) {
         Opcodes tensors;
         for (std::size_t i = 0; i < n / 60; ++i) {
           tensors += py_str(std::to_string(i)) +
                      rebuild("(K\1K\1t", py_tuple({py_int(static_cast<std::int64_t>(i)), "K\1"}));
         }
         out.write("m.pt", torch_file(torch_parts() + "}(" + tensors + "u"));
       }},
      {"one_long_storage_key",
       [](const auto& out, std::size_t n) {
         const Opcodes storage = "(" + get(2) + get(3) + get(1) + get(4) + "K\20tQ";
         out.write("m.pt", torch_file(keep(py_str(std::string(n / 2, 'k')), 1) +
                                      keep(py_str("storage"), 2) +
                                      keep(py_global("torch", "FloatStorage"), 3) +
                                      keep(py_str("cpu"), 4) + "(" + times(n / 30, storage) + "t"));
       }},
      {"places_with_one_long_offset",
       [](const auto& out, std::size_t n) {
         write_metadata(
             out,
             keep(ones(n / 4), 1) +
                 keep(py_global("torch.distributed.checkpoint.metadata", "MetadataIndex"), 2) +
                 keep(py_str("offset"), 3) + keep(py_str("fqn"), 4),
             py_dict({}),
             "}(" +
                 times(n / 30,
                       get(2) + ")\x81}(" + get(4) + py_str("w") + get(3) + get(1) + "ubN") +
                 "u");
       }},
      {"places_with_one_long_name",
       [](const auto& out, std::size_t n) {
         write_metadata(
             out,
             keep(py_str(std::string(n / 2, 'w')), 1) +
                 keep(py_global("torch.distributed.checkpoint.metadata", "MetadataIndex"), 2) +
                 keep(py_str("offset"), 3) + keep(py_str("fqn"), 4),
             py_dict({}),
             "}(" + times(n / 30, get(2) + ")\x81}(" + get(4) + get(1) + get(3) + "(K\0tubN"s) +
                 "u");
       }},
      {"paddings_of_one_long_tuple",
       [](const auto& out, std::size_t n) {
         TorchWriter torch;
         const Opcodes flat = py_list({torch.tensor("Float", {16}, std::string(64, 'x'))});
         const Opcodes state =
             "}(" + py_str("partition_count") + "K\1" + py_str("single_partition_of_fp32_groups") +
             flat + py_str("param_alignment_paddings") + "](" + times(n / 4, get(1)) + "eu";
         out.write("zero_pp_rank_0_mp_rank_00_optim_states.pt",
                   torch.file(keep(ones(n / 4), 1) + "}(" + py_str("optimizer_state_dict") + state +
                              "u"));
       }},
      {"chunks_of_one_item_of_many_members",
       [](const auto& out, std::size_t n) {
         TorchWriter torch;
         for (std::size_t i = 0; i < n / 300; ++i) (void)torch.tensor("Float", {1}, "four");
         const std::string item = torch.file(torch.tensor("Float", {16}, std::string(64, 'x')));
         const Opcodes properties =
             metadata_object("TensorProperties", "(" + py_global("torch", "float32") + "Nt");
         const Opcodes chunk =
             metadata_object("ChunkStorageMetadata",
                             "}(" + py_str("offsets") + get(1) + py_str("sizes") + get(2) + "u");
         const Opcodes tensor = metadata_object(
             "TensorStorageMetadata", "}(" + py_str("properties") + properties + py_str("size") +
                                          get(2) + py_str("chunks") + py_list({chunk}) + "u");
         const Opcodes place = metadata_object(
             "_StorageInfo", "}(" + py_str("relative_path") + py_str("a.distcp") +
                                 py_str("offset") + "K\0"s + py_str("length") +
                                 py_int(static_cast<std::int64_t>(item.size())) + "u");
         Opcodes places = "}(";
         for (std::size_t i = 0; i < n / 150; ++i) {
           places +=
               metadata_object("MetadataIndex", "}(" + py_str("fqn") + py_str(std::to_string(i)) +
                                                    py_str("offset") + get(1) + "u") +
               get(4);
         }
         write_metadata(out,
                        keep(torch_size({0}), 1) + keep(torch_size({16}), 2) + keep(tensor, 3) +
                            keep(place, 4),
                        numbered(n / 150, "}(", get(3), "u"), places + "u");
         out.write("a.distcp", item);
       }},
      {"aliases_of_aliases",
       [](const auto& out, std::size_t n) {
         ZeroRun run{.stage = 1, .world = 1, .groups = {{{"w", {16}}}}, .shared = {}};
         const std::size_t count = n / 40;
         for (std::size_t i = 0; i < count; ++i) {
           run.shared[fmt::format("a{}", i)] = i + 1 < count ? fmt::format("a{}", i + 1) : "w";
         }
         ZeroWriter(run).write(out, "g");
         out.write("latest", "g");
       }},
      {"layers_of_a_pipeline",
       [](const auto& out, std::size_t n) {
         const auto states = [&](const std::string& name, std::size_t more) {
           std::vector<std::pair<std::string, Opcodes>> shapes = {{name, torch_size({16})}};
           for (std::size_t i = 0; i < more; ++i) {
             shapes.emplace_back(fmt::format("tied_modules.{}.y", i), torch_size({0}));
           }
           return TorchWriter().file(py_dict({{"param_shapes", py_list({py_dict(shapes)})},
                                              {"buffer_names", py_list({})},
                                              {"mp_world_size", "K\2"}}));
         };
         TorchWriter torch;
         const Opcodes flat = torch.tensor("Float", {16}, std::string(64, 'x'));
         const std::string optimizer = torch.file(
             py_dict({{"optimizer_state_dict",
                       py_dict({{"zero_stage", "K\1"},
                                {"partition_count", "K\1"},
                                {"single_partition_of_fp32_groups", py_list({flat})}})}}));
         out.write("mp_rank_00_model_states.pt", states("w0", n / 120));
         out.write("mp_rank_01_model_states.pt", states("w1", 0));
         out.write("zero_pp_rank_0_mp_rank_00_optim_states.pt", optimizer);
         out.write("zero_pp_rank_0_mp_rank_01_optim_states.pt", optimizer);
         out.write("layer_01-model_states.pt",
                   torch_file(torch_parts() + keep(rebuild(ones(1), ones(1)), 1) +
                              numbered(n / 40, "}(", get(1), "u")));
       }},
      {"lists_of_one_element",
       [](const auto& out, std::size_t n) {
         out.write("m.pt", torch_file("](" + times(n / 3, "]Na") + "e"));
       }},
      {"values_of_a_configuration",
       [](const auto& out, std::size_t n) {
         out.write("model.safetensors", safetensors_text({{"w", 16}}, 1));
         out.write("config.json", R"({"a": [0)" + times(n / 32, "," + std::string(31, '1')) + "]}");
       }},
      {"keys_of_a_configuration",
       [](const auto& out, std::size_t n) {
         out.write("model.safetensors", safetensors_text({{"w", 16}}, 1));
         std::string text;
         for (std::size_t i = 0; i < n / 20; ++i) text += fmt::format(R"("k{}": {{}},)", i);
         out.write("config.json", "{" + text + R"("quantization_config": {}})");
       }},
      {"names_of_one_file",
       [](const auto& out, std::size_t n) {
         std::vector<std::pair<std::string, std::size_t>> tensors;
         for (std::size_t i = 0; i < n / 60; ++i) tensors.emplace_back(std::to_string(i), 0);
         out.write("m.safetensors", safetensors_text(tensors, 1));
         std::string weights;
         for (int i = 0; i < 4; ++i) {
           const std::string name = fmt::format("m{}.safetensors", i);
           std::filesystem::create_symlink("m.safetensors", out / name);
           weights += fmt::format(R"("w{}": "{}",)", i, name);
         }
         out.write("model.safetensors.index.json",
                   R"({"weight_map": {)" + weights + R"("0": "m.safetensors"}})");
       }},
  };
  return all;
}

class SharedParts : public testing::TestWithParam<std::size_t> {};

TEST_P(SharedParts, CostInProportionToTheFile) {
  const Row& row = rows()[GetParam()].second;
  Cost before;
  for (const std::size_t size :
       {std::size_t{200'000}, std::size_t{400'000}, std::size_t{800'000}}) {
    const Cost cost = cost_of([&](const TemporaryDirectory& out) { row(out, size); });
    EXPECT_LE(cost.most, 32 * cost.input + 48_MiB) << cost.message;
    EXPECT_LE(cost.work, 64 * cost.input + 64_MiB) << cost.message;
    if (before.input != 0) {
      EXPECT_LE(cost.work, 2 * before.work + 2_MiB) << "for twice the input";
    }
    before = cost;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, SharedParts, testing::Range(std::size_t{0}, rows().size()),
                         [](const auto& row) { return rows()[row.param].first; });

/// A pickle of containers that refer to each other, themselves among them, by keys that matter to
/// the readers.
Opcodes random_sharing(std::uint32_t seed, std::size_t size) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  static const std::vector<std::string> kKeys = {"state_dict",
                                                 "model",
                                                 "module",
                                                 "param_shapes",
                                                 "buffer_names",
                                                 "shared_params",
                                                 "frozen_param_shapes",
                                                 "frozen_param_fragments",
                                                 "optimizer_state_dict",
                                                 "param_alignment_paddings",
                                                 "partition_count",
                                                 "single_partition_of_fp32_groups",
                                                 "fp32_flat_groups",
                                                 "state_dict_metadata",
                                                 "storage_data",
                                                 "chunks",
                                                 "fqn",
                                                 "offset",
                                                 "offsets",
                                                 "sizes",
                                                 "size",
                                                 "relative_path",
                                                 "length",
                                                 "properties",
                                                 "dtype"};
  constexpr int kFirst = 100, kCount = 40;
  Opcodes code = torch_parts();
  std::vector<int> kinds;
  // Empty ones first, so that each can be in any other.
  for (int i = 0; i < kCount; ++i) {
    const int kind = i < 4 ? 2 : below(4);
    kinds.push_back(kind);
    const Opcodes empty = kind == 0 ? "]"
                          : kind == 1
                              ? py_global("torch.distributed.checkpoint.metadata", "X") + ")\x81"
                          : kind == 2 ? "}"
                                      : py_global("collections", "OrderedDict") + ")R";
    code += keep(empty, kFirst + i);
  }
  const auto value = [&]() -> Opcodes {
    switch (below(8)) {
      case 0:
        return {'K', static_cast<char>(below(4))};
      case 1:
        return rebuild(ones(1), ones(1));
      case 2:
        return ones(static_cast<std::size_t>(below(80)));
      case 3:
        return py_str(std::string(static_cast<std::size_t>(below(50)), 'x'));
      default:
        return get(kFirst + below(kCount));
    }
  };
  const auto key = [&] {
    return py_str(below(3) == 0 ? std::to_string(below(1000)) : kKeys[random() % kKeys.size()]);
  };
  while (code.size() < size) {
    const auto target = static_cast<std::size_t>(below(kCount));
    const Opcodes pair = kinds[target] == 0 ? value() : key() + value();
    code += get(kFirst + static_cast<int>(target)) + "(" + times(1 + random() % 64, pair) +
            (kinds[target] == 0 ? "e0" : "u0");
    if (kinds[target] == 1 && below(8) == 0) {
      code += get(kFirst + static_cast<int>(target)) + get(kFirst + below(kCount)) + "b0";
    }
  }
  return code + get(kFirst);
}

TEST(SharedParts, OfAnyShapeCostInProportionToThePickle) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    Cost before;
    for (const std::size_t size :
         {std::size_t{50'000}, std::size_t{100'000}, std::size_t{200'000}}) {
      const std::string bytes = torch_file(random_sharing(seed, size));
      MemorySource source;
      const FileId file = source.add(
          "f.pt",
          std::vector<std::byte>(reinterpret_cast<const std::byte*>(bytes.data()),
                                 reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size()));
      const heap_meter::Span memory;
      std::uint64_t steps = 0;
      {
        const auto torch = TorchFile::open(source, file, {0, bytes.size()});
        ASSERT_TRUE(torch) << torch.error().message();
        if (const auto dict = find_state_dict(*torch, "", "f")) {
          for (const NamedNode& named : dict->tensors) (void)torch->tensor(named.node);
        }
        (void)read_dcp_metadata(torch->pickle(), "f", [](std::string_view) { return true; });
        steps = torch->pickle().budget()->steps();
      }
      (void)read_model_states(source, file);
      (void)read_optimizer_states(source, file);
      (void)read_old_shapes(source, file);
      const std::size_t work = memory.sum() + steps;
      EXPECT_LE(steps, kWorkBase + kWorkFactor * bytes.size());
      EXPECT_LE(memory.most(), 32 * bytes.size() + 48_MiB) << "seed " << seed;
      if (before.input != 0) {
        EXPECT_LE(work, 2 * before.work + 8_MiB) << "seed " << seed;
      }
      before = {bytes.size(), work, 0, {}};
    }
  }
}

/// As torch writes it, of `tensors` tensors that `ranks` ranks have a row of each.
std::string metadata_of_many(int tensors, int ranks) {
  enum : std::uint8_t { kIndex = 1, kSize, kChunk, kInfo, kTensor, kFqn, kOffset, kPath, kLength };
  enum : std::uint8_t { kOffsets = 20, kSizes, kChunks, kShape };
  const std::string module = "torch.distributed.checkpoint.metadata";
  const Opcodes before = keep(py_global(module, "MetadataIndex"), kIndex) +
                         keep(py_global("torch", "Size"), kSize) +
                         keep(py_global(module, "ChunkStorageMetadata"), kChunk) +
                         keep(py_global(module, "_StorageInfo"), kInfo) +
                         keep(py_global(module, "TensorStorageMetadata"), kTensor) +
                         keep(py_str("fqn"), kFqn) + keep(py_str("offset"), kOffset) +
                         keep(py_str("relative_path"), kPath) + keep(py_str("length"), kLength) +
                         keep(py_str("offsets"), kOffsets) + keep(py_str("sizes"), kSizes) +
                         keep(py_str("chunks"), kChunks) + keep(py_str("size"), kShape);
  const auto size = [](int rows, int columns) {
    return get(kSize) + py_int(rows) + py_int(columns) + "\x86\x85R";
  };
  const auto object = [](int type, const Opcodes& fields) {
    return get(type) + ")\x81}(" + fields + "ub";
  };
  Opcodes all, places;
  for (int tensor = 0; tensor < tensors; ++tensor) {
    const std::string name = fmt::format("model.layers.{}.mlp.experts.weight", tensor);
    Opcodes chunks;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string path = fmt::format("__{}_0.distcp", rank);
      chunks += object(kChunk, get(kOffsets) + size(rank, 0) + get(kSizes) + size(1, 8));
      places += object(kIndex, get(kFqn) + py_str(name) + get(kOffset) + size(rank, 0)) +
                object(kInfo, get(kPath) + py_str(path) + get(kOffset) + py_int(2000 * tensor) +
                                  get(kLength) + py_int(1500));
    }
    all += py_str(name) +
           object(kTensor, get(kShape) + size(ranks, 8) + get(kChunks) + "](" + chunks + "e");
  }
  return "\x80\x02" + before +
         metadata_object("Metadata", "}(" + py_str("state_dict_metadata") + "}(" + all + "u" +
                                         py_str("storage_data") + "}(" + places + "uu") +
         ".";
}

TEST(DcpMetadata, OfManyRanksIsReadInAFewTimesItsBytes) {
  const std::string text = metadata_of_many(20, 512);
  const heap_meter::Span memory;
  std::optional<Result<DcpMetadata>> metadata;
  {
    const auto pickle = parse_pickle(std::as_bytes(std::span(text)), ".metadata");
    ASSERT_TRUE(pickle) << pickle.error().message();
    metadata = read_dcp_metadata(*pickle, ".metadata", [](std::string_view) { return true; });
    ASSERT_TRUE(*metadata) << metadata->error().message();
    // A sanitizer's realloc() copies.
    const double times = kSanitized ? 4 : 2.6;
    EXPECT_LE(memory.most(), times * static_cast<double>(text.size()));
  }
  ASSERT_EQ((*metadata)->tensors.size(), 20U);
  for (const DcpTensor& tensor : (*metadata)->tensors) {
    ASSERT_EQ(tensor.chunks.size(), 512U);
    for (const DcpChunk& chunk : tensor.chunks) {
      EXPECT_EQ((*metadata)->paths[chunk.path],
                fmt::format("__{}_0.distcp", tensor.offsets(chunk)[0]));
    }
  }
  const std::size_t before = heap_meter::now;
  metadata.reset();
  EXPECT_LE(before - heap_meter::now, 20 * 512 * 60 + 64_KiB);
}

/// Opens a database of so many leaves, each a zstd frame of `keys` values of `size` zeros.
Cost cost_of_leaves(int leaves, int keys, std::size_t size) {
  return cost_of([&](const TemporaryDirectory& out) {
    const ocdbt::FileName no_name = [](std::uint32_t) { return std::string(); };
    OrbaxWriter item;
    item.with_manifest = false;
    std::string& nodes = item.files["d/nodes"];
    std::vector<ocdbt::Child> children;
    for (int node = 0; node < leaves; ++node) {
      ocdbt::Leaf<ocdbt::KeptColumn> leaf(no_name);
      for (int key = 0; key < keys; ++key) {
        leaf.add(fmt::format("{:04}/{:04}", node, key), std::string(size, '\0'));
      }
      const std::string text = compressed(leaf.render());
      children.push_back({fmt::format("{:04}/0000", node), nodes.size(), text.size(), {}});
      nodes += text;
    }
    const std::string root = ocdbt::render_interior(1, "d/nodes", children);
    item.files["manifest.ocdbt"] =
        ocdbt::render_manifest("d/nodes", {{1, 2}, 1, nodes.size(), root.size(), {}});
    nodes += root;
    item.write(out);
  });
}

// A data file may be as large as it likes, of holes.
TEST(OcdbtNodes, ThatAreOneLeafAreRefusedBeforeItIsRead) {
  const Cost cost = cost_of([&](const TemporaryDirectory& out) {
    const ocdbt::FileName no_name = [](std::uint32_t) { return std::string(); };
    OrbaxWriter item;
    item.with_manifest = false;
    std::string& nodes = item.files["d/nodes"];
    ocdbt::Leaf<ocdbt::KeptColumn> leaf(no_name);
    leaf.add("0000", std::string(1_MiB, 'x'));
    nodes = leaf.render();
    const std::uint64_t size = nodes.size();
    std::vector<ocdbt::Child> children;
    for (std::size_t child = 0; child < ocdbt::kNodeEntries; ++child) {
      children.push_back({fmt::format("{:05}", child), 0, size, {}});
    }
    const std::string root = ocdbt::render_interior(1, "d/nodes", children);
    item.files["manifest.ocdbt"] =
        ocdbt::render_manifest("d/nodes", {{1, 2}, 1, nodes.size(), root.size(), {}});
    nodes += root;
    item.write(out);
    std::filesystem::resize_file(out / "d" / "nodes", std::uint64_t{4} << 30);
  });
  EXPECT_NE(cost.message.find("overlaps another"), std::string::npos) << cost.message;
  EXPECT_LE(cost.most, 48_MiB) << cost.message;
}

TEST(OcdbtNodes, OfFewBytesTakeFew) {
  const Cost cost = cost_of_leaves(4000, 1, 1);
  EXPECT_LE(cost.most, 24_MiB + 24 * cost.input) << cost.message;
}

TEST(OcdbtNodes, ThatGrowAThousandfoldAreNotHeldTogether) {
  const Cost cost = cost_of_leaves(64, 20, 1_MiB);
  EXPECT_NE(cost.message.find("more than "), std::string::npos) << cost.message;
  EXPECT_LE(cost.most, 64_MiB) << cost.message;
}

/// .metadata of a tensor of as many bricks, in courses of which each begins half a brick later.
std::string metadata_of_bricks(int courses, int bricks) {
  std::string described, located;
  const auto size = [](int row, int column) {
    return py_global("torch", "Size") + py_tuple({py_int(row), py_int(column)}) + "\x85R";
  };
  const auto object = [](const char* type, const std::string& fields) {
    return py_global("torch.distributed.checkpoint.metadata", type) + ")\x81}(" + fields + "ub";
  };
  for (int row = 0; row < courses; ++row) {
    for (int brick = 0; brick <= bricks; ++brick) {
      const int begin = brick == 0 ? 0 : 2 * brick - row % 2;
      const int end = brick == bricks ? 2 * bricks + 1 : 2 * brick + 2 - row % 2;
      described += object("ChunkStorageMetadata", py_str("offsets") + size(row, begin) +
                                                      py_str("sizes") + size(1, end - begin));
      located += object("MetadataIndex",
                        py_str("fqn") + py_str("w") + py_str("offset") + size(row, begin)) +
                 object("_StorageInfo", py_str("relative_path") + py_str("a") + py_str("offset") +
                                            py_int(0) + py_str("length") + py_int(9));
    }
  }
  const std::string tensor =
      object("TensorStorageMetadata", py_str("size") + size(courses, 2 * bricks + 1) +
                                          py_str("chunks") + "](" + described + "e");
  return "\x80\x02" +
         metadata_object("Metadata", "}(" + py_str("state_dict_metadata") + "}(" + py_str("w") +
                                         tensor + "u" + py_str("storage_data") + "}(" + located +
                                         "uu") +
         ".";
}

// No grid, and more of them than are compared pair by pair.
TEST(DcpMetadata, OfBricksIsReadInStepsOfItsBytes) {
  const std::string text = metadata_of_bricks(100, 60);
  const auto pickle = parse_pickle(std::as_bytes(std::span(text)), ".metadata");
  ASSERT_TRUE(pickle) << pickle.error().message();
  const auto metadata =
      read_dcp_metadata(*pickle, ".metadata", [](std::string_view) { return true; });
  ASSERT_TRUE(metadata) << metadata.error().message();
  EXPECT_EQ(metadata->tensors.front().chunks.size(), 6100U);
  EXPECT_LE(pickle->budget()->steps(), 4 * text.size());
}

TEST(WorkBudget, IsFourTimesWhatRealCheckpointsNeed) {
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::path(CKFS_TEST_DATA) / "torch")) {
    if (entry.path().filename() != ".metadata" || !entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    const auto pickle = parse_pickle(std::as_bytes(std::span(text)), "f");
    ASSERT_TRUE(pickle);
    ASSERT_TRUE(read_dcp_metadata(*pickle, "f", [](std::string_view) { return true; }));
    EXPECT_LE(4 * pickle->budget()->steps(), kWorkFactor * text.size()) << entry.path();
    EXPECT_LE(2 * pickle->budget()->bytes(), kHoldFactor * text.size()) << entry.path();
    ++seen;
  }
  EXPECT_GE(seen, 3U);
}

}  // namespace
}  // namespace ckfs
