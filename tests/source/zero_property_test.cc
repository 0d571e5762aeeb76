// ZeRO checkpoints of random worlds: every parameter has the bytes it was written with.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "source/open_checkpoint.h"
#include "source/zero_writer.h"

namespace ckfs {
namespace {

ZeroRun random_run() {
  ZeroRun run;
  run.stage = *rc::gen::inRange(1, 4);
  run.world = *rc::gen::element<std::int64_t>(1, 2, 3, 4, 5, 7, 8);
  run.trim = *rc::gen::element(ZeroTrim::EveryRank, ZeroTrim::LastRank, ZeroTrim::None);
  run.alignment = *rc::gen::element<std::int64_t>(1, 1, 4, 8);
  const int groups = *rc::gen::inRange(1, 4);
  for (int g = 0; g < groups; ++g) {
    const int count = *rc::gen::inRange(1, 6);
    auto& group = run.groups.emplace_back();
    for (int p = 0; p < count; ++p) {
      const int rank = *rc::gen::inRange(0, 4);
      std::vector<std::int64_t> shape;
      for (int d = 0; d < rank; ++d) {
        shape.push_back(*rc::gen::weightedOneOf<std::int64_t>(
            {{20, rc::gen::inRange<std::int64_t>(1, 12)}, {1, rc::gen::just<std::int64_t>(0)}}));
      }
      group.push_back({fmt::format("g{}.p{}", g, p), shape});
    }
  }
  return run;
}

std::string bytes_of(ByteSource& source, const Storage& storage) {
  std::string bytes;
  for (const Extent& extent : storage.extents) {
    std::string part(extent.nbytes, '\0');
    const auto read =
        source.read_at(extent.file, extent.offset, std::as_writable_bytes(std::span(part)));
    RC_ASSERT(read.has_value());
    bytes += part;
  }
  return bytes;
}

RC_GTEST_PROP(ZeroLayout, FindsEveryElementOfEveryParameter, ()) {
  const ZeroRun run = random_run();
  const ZeroWriter writer(run);
  const TemporaryDirectory directory;
  writer.write(directory, "step");
  const auto files = LocalFiles::create({.engine = IoEngine::Pread}).value();
  const auto catalog = open_checkpoint(directory.path(), *files);
  if (!catalog) RC_FAIL(catalog.error().message());
  std::size_t seen = 0;
  for (const auto& group : run.groups) {
    for (const ZeroParameter& parameter : group) {
      const TensorId id = (*catalog)->shards()[0].tensors.at(seen++);
      const StoredTensor& tensor = (*catalog)->tensor(id);
      RC_ASSERT(tensor.name == parameter.name);
      RC_ASSERT(std::ranges::equal(tensor.shape, parameter.shape));
      RC_ASSERT(bytes_of(*files, (*catalog)->storage(tensor)) == writer.value(parameter.name));
    }
  }
  RC_ASSERT(seen == (*catalog)->tensors().size());
}

// Before DeepSpeed 0.6 the shapes were in the optimizer's files, before 0.5.4 as one dictionary.
TEST(ZeroLayout, ShapesMayBeWhereOldReleasesPutThem) {
  ZeroRun run;
  run.world = 1;
  run.groups = {{{"a", {3}}, {"b", {2, 2}}}};
  const ZeroWriter writer(run);
  const TemporaryDirectory directory;
  TorchWriter torch;
  const Opcodes flat = torch.tensor("Float", {7}, writer.value("a") + writer.value("b"));
  const Opcodes shapes = py_dict({{"a", torch_size({3})}, {"b", torch_size({2, 2})}});
  directory.write(
      "step/" + ZeroWriter::optimizer_name(0),
      torch.file(py_dict(
          {{"optimizer_state_dict", py_dict({{"single_partition_of_fp32_groups", py_list({flat})},
                                             {"partition_count", py_int(1)}})},
           {"param_shapes", shapes}})));
  directory.write("step/" + writer.model_name(), writer.model_file({{"param_shapes", py_none()}}));
  const auto files = LocalFiles::create({.engine = IoEngine::Pread}).value();
  const auto catalog = open_checkpoint(directory.path(), *files);
  ASSERT_TRUE(catalog) << catalog.error().message();
  for (const std::string name : {"a", "b"}) {
    const auto id = (*catalog)->find(name);
    ASSERT_TRUE(id);
    const Storage& storage = (*catalog)->storage((*catalog)->tensor(*id));
    ASSERT_EQ(storage.extents.size(), 1U);
    std::string bytes(storage.extents[0].nbytes, '\0');
    ASSERT_TRUE(files->read_at(storage.extents[0].file, storage.extents[0].offset,
                               std::as_writable_bytes(std::span(bytes))));
    EXPECT_EQ(bytes, writer.value(name));
  }
}

}  // namespace
}  // namespace ckfs
