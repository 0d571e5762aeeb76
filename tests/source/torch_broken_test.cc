// Torch files and DCP checkpoints that are broken, incomplete, or not clear: each is refused with
// its own message. Every message of these readers must be reached.
#include "source/broken.h"
#include "source/torch_writer.h"

namespace ckfs {
namespace {

using Fields = std::vector<std::pair<std::string, Opcodes>>;

/// A DCP checkpoint of one tensor "w" of 4 x 4 floats, as chunks of a grid.
struct Dcp {
  struct Chunk {
    std::vector<std::int64_t> offsets, sizes;
  };

  std::vector<std::int64_t> shape = {4, 4};
  std::vector<Chunk> chunks = {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}};
  std::vector<std::int64_t> saved = {4, 2};  // the shape that every part has
  std::string type = "Float";
  std::string dtype = "float32";
  std::string file = "__0_0.distcp";
  bool places = true;        // storage_data has the chunks
  std::int64_t length = -1;  // that storage_data says; -1: the true one
  std::int64_t shift = 0;    // of the place that it says, back from the true one
  Opcodes transforms = "N";
  Fields more_tensors;

  static Opcodes object(const std::string& name, const Fields& fields) {
    return py_object("torch.distributed.checkpoint.metadata", name, py_dict(fields));
  }

  static std::string dict_of(const std::vector<std::pair<Opcodes, Opcodes>>& items) {
    Opcodes dict = "}(";
    for (const auto& [key, value] : items) dict += key + value;
    return dict + "u";
  }

  void write(const TemporaryDirectory& out, const std::string& prefix = "") const {
    std::string parts;
    std::vector<Opcodes> described;
    std::vector<std::pair<Opcodes, Opcodes>> located;
    for (const Chunk& chunk : chunks) {
      TorchWriter torch;
      std::size_t numel = type == "Float" ? 4 : 2;
      for (const std::int64_t extent : saved) numel *= static_cast<std::size_t>(extent);
      const std::string part = torch.file(torch.tensor(type, saved, std::string(numel, 'x')));
      described.push_back(object("ChunkStorageMetadata", {{"offsets", torch_size(chunk.offsets)},
                                                          {"sizes", torch_size(chunk.sizes)}}));
      located.emplace_back(
          object("MetadataIndex", {{"fqn", py_str("w")}, {"offset", torch_size(chunk.offsets)}}),
          object("_StorageInfo",
                 {{"relative_path", py_str(file)},
                  {"offset", py_int(std::max<std::int64_t>(
                                 static_cast<std::int64_t>(parts.size()) - shift, 0))},
                  {"length", py_int(length >= 0 ? length : static_cast<std::int64_t>(part.size()))},
                  {"transform_descriptors", transforms}}));
      parts += part;
    }
    const Opcodes properties = py_object("torch.distributed.checkpoint.metadata",
                                         "TensorProperties", py_tuple({py_global("torch", dtype)}));
    Fields tensors = {{"w", object("TensorStorageMetadata", {{"properties", properties},
                                                             {"size", torch_size(shape)},
                                                             {"chunks", py_list(described)}})}};
    tensors.insert(tensors.end(), more_tensors.begin(), more_tensors.end());
    write_metadata(
        out, prefix,
        object("Metadata", {{"state_dict_metadata", py_dict(tensors)},
                            {"storage_data", dict_of(places ? located : decltype(located){})}}));
    out.write(prefix + "__0_0.distcp", parts);
  }

  static void write_metadata(const TemporaryDirectory& out, const std::string& prefix,
                             const Opcodes& root) {
    out.write(prefix + ".metadata", "\x80\x02" + root + ".");
  }
};

std::string state_dict(const std::string& name, std::int64_t numel = 2) {
  TorchWriter torch;
  return torch.file(
      py_dict({{name, torch.tensor("Float", {numel},
                                   std::string(static_cast<std::size_t>(numel) * 4, 'x'))}}));
}

// clang-format off
std::vector<Broken> dcp_cases() {
  return {
      {"metadata_of_something_else", "no state_dict_metadata and storage_data", [](const auto& out) {
         Dcp().write(out);
         Dcp::write_metadata(out, "", py_dict({}));
       }},
      {"the_same_name_twice", R"(tensor "w": twice)", [](const auto& out) {
         Dcp dcp;
         dcp.more_tensors = {{"w", py_none()}};
         dcp.write(out);
       }},
      {"negative_shape", R"(tensor "w": no possible shape)", [](const auto& out) {
         Dcp dcp;
         dcp.shape = {-4, 4};
         dcp.write(out);
       }},
      {"too_many_dimensions", "65 dimensions (limit 64)", [](const auto& out) {
         Dcp dcp;
         dcp.shape.assign(65, 1);
         dcp.write(out);
       }},
      {"hole_between_chunks", "chunks of 12 elements together, its shape has 16", [](const auto& out) {
         Dcp dcp;
         dcp.chunks[1] = {{0, 3}, {4, 1}};
         dcp.write(out);
       }},
      {"chunk_of_other_dimensions", "a chunk without offsets and sizes in each of 2", [](const auto& out) {
         Dcp dcp;
         dcp.chunks[1] = {{8}, {8}};
         dcp.write(out);
       }},
      {"chunk_beyond_the_shape", "a chunk at 3 of 2 in a dimension of 4", [](const auto& out) {
         Dcp dcp;
         dcp.chunks[1] = {{0, 3}, {4, 2}};
         dcp.write(out);
       }},
      {"chunks_overlap", "chunks at [0, 0] and [2, 1] overlap", [](const auto& out) {
         Dcp dcp;
         dcp.chunks = {{{0, 0}, {4, 2}}, {{2, 1}, {2, 2}}, {{0, 3}, {4, 1}}};
         dcp.write(out);
       }},
      {"irregular_chunks_without_number", "chunks that form no grid (limit 4096)", [](const auto& out) {
         Dcp dcp;
         // A pinwheel: every plane goes through one of its four arms.
         dcp.shape = {66, 66};
         dcp.chunks = {{{0, 0}, {1, 65}}, {{0, 65}, {65, 1}}, {{65, 1}, {1, 65}}, {{1, 0}, {65, 1}}};
         for (std::int64_t i = 0; i < 64 * 64; ++i) {
           dcp.chunks.push_back({{1 + i / 64, 1 + i % 64}, {1, 1}});
         }
         dcp.saved = {0};
         dcp.write(out);
       }},
      {"chunk_without_a_place", "storage_data does not say where its chunk at [0, 0] is", [](const auto& out) {
         Dcp dcp;
         dcp.places = false;
         dcp.write(out);
       }},
      {"chunk_nowhere", "its chunk at [0, 0] has no place in a file", [](const auto& out) {
         Dcp dcp;
         dcp.file = "";
         dcp.write(out);
       }},
      {"compressed", R"(tensor "w": compressed)", [](const auto& out) {
         Dcp dcp;
         dcp.transforms = py_list({py_str("zstd")});
         dcp.write(out);
       }},
      {"part_beyond_the_file", "beyond the end of the file", [](const auto& out) {
         Dcp dcp;
         dcp.length = 1'000'000;
         dcp.write(out);
       }},
      {"parts_overlap", R"(tensor "w": its bytes )", [](const auto& out) {
         Dcp dcp;
         dcp.shift = 1;
         dcp.write(out);
       }},
      {"part_of_another_shape", "a chunk of F32 [2, 2], but .metadata says F32 [4, 2]", [](const auto& out) {
         Dcp dcp;
         dcp.saved = {2, 2};
         dcp.write(out);
       }},
      {"one_part_for_two", "a chunk of float32 [4, 3], but that of tensor \"w\", float32 [4, 2]", [](const auto& out) {
         Dcp dcp;
         dcp.shape = {4, 5};
         dcp.chunks[1] = {{0, 2}, {4, 3}};
         dcp.shift = 1'000'000;
         dcp.write(out);
       }},
      {"part_of_another_dtype", "a chunk of BF16 [4, 2], but .metadata says F32 [4, 2]", [](const auto& out) {
         Dcp dcp;
         dcp.type = "BFloat16";
         dcp.write(out);
       }},
      {"part_missing", "gone.distcp: missing, but .metadata has a part of", [](const auto& out) {
         Dcp dcp;
         dcp.file = "gone.distcp";
         dcp.write(out);
       }},
      {"several_dcp", "several DCP checkpoints: a/, b/", [](const auto& out) {
         Dcp().write(out, "a/");
         Dcp().write(out, "b/");
       }},
      {"dcp_of_an_optimizer", "open the model's directory beside it (or --key optimizer shows", [](const auto& out) {
         Dcp().write(out);
         Dcp::write_metadata(out, "", Dcp::object("Metadata", {
             {"state_dict_metadata", py_dict({{"optimizer.w", Dcp::object("T", {{"chunks", py_list({})}})}})},
             {"storage_data", py_dict({})}}));
       }},
      {"no_dcp_tensors", ".metadata: no tensors in it", [](const auto& out) {
         Dcp().write(out);
         Dcp::write_metadata(out, "", Dcp::object("Metadata", {{"state_dict_metadata", py_dict({})},
                                                               {"storage_data", py_dict({})}}));
       }},
      {"no_dcp_key", R"(no tensors below the key "model")", [](const auto& out) { Dcp().write(out); },
       {.tag = {}, .key = "model", .config = {}}},
      {"no_dcp_tag", "only DeepSpeed checkpoints have tags", [](const auto& out) { Dcp().write(out); },
       {.tag = "x", .key = {}, .config = {}}},
  };
}

std::vector<Broken> file_cases() {
  return {
      {"two_indexes", "2 files *.bin.index.json: ckfs cannot tell which to use", [](const auto& out) {
         out.write("a.bin.index.json", "{}");
         out.write("b.bin.index.json", "{}");
       }},
      {"two_files", "several torch files: a.pt, b.pt; open one of them", [](const auto& out) {
         out.write("a.pt", state_dict("a"));
         out.write("b.pt", state_dict("b"));
       }},
      {"index_of_an_absent_file", R"(names "gone.bin", which is absent)", [](const auto& out) {
         out.write("m.bin.index.json", R"({"weight_map": {"a": "gone.bin"}})");
       }},
      {"index_of_an_absent_tensor", R"(a.bin: tensor "b": in m.bin.index.json, not in the file)", [](const auto& out) {
         out.write("m.bin.index.json", R"({"weight_map": {"b": "a.bin"}})");
         out.write("a.bin", state_dict("a"));
       }},
      {"the_same_tensor_in_two_files", R"(tensor "a": also in another file)", [](const auto& out) {
         out.write("m-00001-of-00002.bin", state_dict("a"));
         out.write("m-00002-of-00002.bin", state_dict("a"));
       }},
      {"file_of_a_series_missing", "number 2 of 2 is missing", [](const auto& out) {
         out.write("m-00001-of-00002.bin", state_dict("a"));
       }},
      {"nothing_to_show", "none of its 1 tensors can be shown", [](const auto& out) {
         TorchWriter torch;
         out.write("m.pt", torch.file(py_dict(
                               {{"c", torch.tensor("QInt8", {1}, "x")}})));
       }},
      {"one_name_of_two_paths", R"(tensor "a.b.c": two keys make this name)", [](const auto& out) {
         TorchWriter torch;
         const auto tensor = [&] { return torch.tensor("Float", {1}, "wxyz"); };
         const Opcodes below_a = py_dict({{"b.c", tensor()}});
         out.write("m.pt", torch.file(py_dict({{"a", below_a}, {"a.b", py_dict({{"c", tensor()}})}})));
       }},
      {"one_name_of_two_keys", R"(tensor "1": two keys make this name)", [](const auto& out) {
         TorchWriter torch;
         const Opcodes one = py_int(1) + torch.tensor("Float", {1}, "wxyz");
         const Opcodes other = py_str("1") + torch.tensor("Float", {1}, "wxyz");
         out.write("m.pt", torch.file("}(" + one + other + "u"));
       }},
      {"elements_beyond_all_sums", R"(tensor "b": more than 288230376151711744 elements)", [](const auto& out) {
         TorchWriter torch;
         const auto wide = [&] { return torch.strided("Float", {std::int64_t{3} << 56}, {0}, 0, 1, "wxyz"); };
         out.write("m.pt", torch.file(py_dict({{"a", wide()}, {"b", wide()}})));
       }},
      {"series_of_two_billions", "number 2 of 2147483647 is missing", [](const auto& out) {
         out.write("m-00001-of-2147483647.bin", state_dict("a"));
       }},
      {"series_of_fewer_than_none", "one of -5 files (limit 1 to 2147483647)", [](const auto& out) {
         out.write("m-00001-of--5.bin", state_dict("a"));
       }},
      {"series_with_one_more", "number 9 (limit 0 to 5)", [](const auto& out) {
         out.write("m-00009-of-00005.bin", state_dict("a"));
       }},
      {"parts_refer_to_each_other", "so often that reading it needs more than", [](const auto& out) {
         TorchWriter torch;
         std::vector<std::pair<std::string, Opcodes>> keys;
         for (int i = 0; i < 2000; ++i) keys.emplace_back(std::to_string(i), "h\1");
         const Opcodes tensors = torch.tensor("Float", {1}, "wxyz") + "q\1" "0" + py_dict(keys) + "q\1" "0";
         out.write("m.pt", torch.file(tensors + py_dict(keys)));
       }},
      {"no_tensors", R"(no tensors in it (its keys: "epoch"))", [](const auto& out) {
         out.write("m.pt", TorchWriter().file(py_dict({{"epoch", py_int(1)}})));
       }},
      {"a_bare_tensor", "a tensor without a name, not a dictionary of tensors", [](const auto& out) {
         TorchWriter torch;
         out.write("m.pt", torch.file(torch.tensor("Float", {1}, "xxxx")));
       }},
      {"an_object", R"(an object of "user.Model", not a dictionary)", [](const auto& out) {
         out.write("m.pt", TorchWriter().file(py_object("user", "Model", py_dict({}))));
       }},
      {"no_such_key", R"(no key "b" (it has "a"))", [](const auto& out) {
         out.write("m.pt", state_dict("a"));
       }, {.tag = {}, .key = "b", .config = {}}},
      {"no_tag", "only DeepSpeed checkpoints have tags", [](const auto& out) {
         out.write("m.pt", state_dict("a"));
       }, {.tag = "b", .key = {}, .config = {}}},
  };
}
// clang-format on

const std::vector<Broken>& broken_torch() {
  static const std::vector<Broken> all = [] {
    std::vector<Broken> joined = dcp_cases();
    for (Broken& broken : file_cases()) joined.push_back(std::move(broken));
    return joined;
  }();
  return all;
}

class BrokenTorch : public testing::TestWithParam<std::size_t> {};

TEST_P(BrokenTorch, IsRefusedWithItsMessage) {
  expect_refused(broken_torch()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenTorch, testing::Range(std::size_t{0}, broken_torch().size()),
                         [](const auto& test) { return broken_torch()[test.param].name; });

TEST(BrokenTorchCorpus, ReachesEveryErrorText) {
  const std::set<std::string> exempt = {
      "{}: {} bytes (limit {})",  // a .metadata of 1 GiB
      // They were there a moment ago.
      "{}: none of its files is a readable torch file any more",
  };
  const auto wanted = [](const std::string& name) {
    // dcp_pieces.cc reads safetensors files: weight_files_test.cc.
    return name.starts_with("torch") || name.starts_with("dcp_metadata") ||
           name.starts_with("numbered");
  };
  expect_all_errors_reached(broken_torch(), wanted, 20, exempt);
}

TEST(BrokenTorchCorpus, TheCheckpointThatItBreaksIsGood) {
  EXPECT_EQ(message_of({"good", "", [](const auto& out) { Dcp().write(out); }}), "(no error)");
  // Chunks that are no grid, and an optimizer's folder beside.
  EXPECT_EQ(message_of({"good", "",
                        [](const auto& out) {
                          Dcp dcp;
                          dcp.chunks = {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}};
                          dcp.saved = {2, 4};
                          dcp.write(out, "model/");
                          dcp.write(out, "optimizer_0/");
                        }}),
            "(no error)");
}

}  // namespace
}  // namespace ckfs
