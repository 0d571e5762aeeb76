// Files of FSDP ranks: every element of every tensor at its place, from meshes of all kinds; which
// files are opened; and what is said of them.
#include <array>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <rapidcheck/gtest.h>

#include "source/fsdp_writer.h"
#include "source/opened.h"
#include "source/torch/device_mesh.h"
#include "source/torch/fsdp_names.h"
#include "source/torch/fsdp_rank.h"
#include "support/memory_source.h"
#include "support/naive_view.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Numbers = std::vector<std::int64_t>;

// ---- names

TEST(FsdpName, IsThatOfTheModelOfARank) {
  const auto name = parse_fsdp_name("model_world_size_16_rank_10.pt");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->world, 16U);
  EXPECT_EQ(name->rank, 10U);
  EXPECT_EQ(fsdp_file_name(16, 10), "model_world_size_16_rank_10.pt");
}

TEST(FsdpName, IsNoOther) {
  for (const std::string_view other :
       {"optim_world_size_2_rank_0.pt", "model_world_size_2_rank_0.pth", "model_world_size_2.pt",
        "model_world_size_2_rank_.pt", "model_world_size__rank_0.pt",
        "model_world_size_02_rank_0.pt", "model_world_size_2_rank_00.pt",
        "model_world_size_2_rank_-1.pt", "model_world_size_2_rank_99999999999.pt",
        "model_world_size_.pt", ".pt", ""}) {
    EXPECT_FALSE(parse_fsdp_name(other)) << other;
  }
}

TEST(FsdpStep, IsTheNumberOfTheLastFolderOfASteps) {
  EXPECT_EQ(fsdp_step("global_step_7/actor/"), 7U);
  EXPECT_EQ(fsdp_step("run/global_step_12/"), 12U);
  EXPECT_EQ(fsdp_step("actor/"), std::nullopt);
  EXPECT_EQ(fsdp_step(""), std::nullopt);
  EXPECT_EQ(fsdp_step("global_step_x/"), std::nullopt);
}

TEST(WithoutWrappers, CutsTheirNamesWhereverTheyAre) {
  EXPECT_EQ(without_wrappers("_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module."
                             "_checkpoint_wrapped_module.mlp._orig_mod.weight"),
            "model.layers.0.mlp.weight");
  EXPECT_EQ(without_wrappers("model.my_orig_mod.weight"), "model.my_orig_mod.weight");
  EXPECT_EQ(without_wrappers("_orig_mod"), "_orig_mod");
  EXPECT_EQ(without_wrappers(""), "");
}

// ---- meshes

using Kind = AxisPlacement::Kind;

TEST(DeviceMesh, CutsAsTorchChunkDoes) {
  // 5 rows over 4 devices, 7 over 3, 1 over 3.
  const auto rows = [](std::int64_t count, std::int64_t devices) {
    Numbers sizes;
    const std::array placements{AxisPlacement{Kind::Shard, 0}};
    for (std::int64_t i = 0; i < devices; ++i) {
      const Numbers shape{count};
      sizes.push_back(box_of(shape, placements, {{devices}, {i}}, {}).value().count[0]);
    }
    return sizes;
  };
  EXPECT_THAT(rows(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(rows(7, 3), ElementsAre(3, 3, 1));
  EXPECT_THAT(rows(1, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(rows(0, 2), ElementsAre(0, 0));
}

TEST(DeviceMesh, AStridedShardCutsWhatLaterAxesLeft) {
  // FSDP 2 over TP 2, 14 rows: TP has 7 and 7, each of which FSDP cuts into 4 and 3.
  const std::array placements{AxisPlacement{Kind::StridedShard, 0, 2},
                              AxisPlacement{Kind::Shard, 0}};
  const Numbers shape{14};
  const auto box = [&](std::int64_t f, std::int64_t t) {
    const DeviceBox found = box_of(shape, placements, {{2, 2}, {f, t}}, {}).value();
    return std::pair(found.begin[0], found.count[0]);
  };
  EXPECT_EQ(box(0, 0), std::pair(std::int64_t{0}, std::int64_t{4}));
  EXPECT_EQ(box(1, 0), std::pair(std::int64_t{4}, std::int64_t{3}));
  EXPECT_EQ(box(0, 1), std::pair(std::int64_t{7}, std::int64_t{4}));
  EXPECT_EQ(box(1, 1), std::pair(std::int64_t{11}, std::int64_t{3}));
}

TEST(DeviceMesh, RefusesASplitFactorThatNoAxesMake) {
  const std::array placements{AxisPlacement{Kind::StridedShard, 0, 3},
                              AxisPlacement{Kind::Shard, 0}};
  const Numbers shape{12};
  EXPECT_FALSE(box_of(shape, placements, {{2, 2}, {0, 0}}, {}));
}

TEST(DeviceMesh, HeedsAStatedOrder) {
  const std::array placements{AxisPlacement{Kind::Shard, 0}, AxisPlacement{Kind::Shard, 0}};
  const Numbers shape{12};
  const DeviceMesh mesh{{2, 3}, {1, 0}};
  EXPECT_EQ(box_of(shape, placements, mesh, {}).value().begin[0], 6);
  const std::array<DivisionOrder, 1> order{{{0, {1, 0}}}};  // by axis 1 into 4, then by axis 0
  EXPECT_EQ(box_of(shape, placements, mesh, order).value().begin[0], 2);
  const std::array<DivisionOrder, 1> wrong{{{0, {1}}}};
  EXPECT_FALSE(box_of(shape, placements, mesh, wrong));
}

// ---- random worlds

/// A tensor that a mesh shares, and how: the reference knows each rank's indices by cutting lists.
struct Shared {
  std::string name;
  Numbers shape;
  std::vector<Opcodes> placements;
  Opcodes order = py_none();
  /// Of each rank and dimension: the indices that it has.
  std::vector<std::vector<Numbers>> indices;
};

Numbers chunk(const Numbers& list, std::int64_t pieces, std::int64_t place) {
  const auto size = static_cast<std::int64_t>(list.size());
  const std::int64_t each = (size + pieces - 1) / pieces;
  Numbers chosen;
  for (std::int64_t i = 0; i < size; ++i) {
    if (each > 0 && i / each == place) chosen.push_back(list[static_cast<std::size_t>(i)]);
  }
  return chosen;
}

Numbers place_of(std::int64_t rank, const Numbers& mesh) {
  Numbers place(mesh.size());
  for (std::size_t axis = mesh.size(); axis-- > 0; rank /= mesh[axis]) {
    place[axis] = rank % mesh[axis];
  }
  return place;
}

Shared random_shared(std::string name, const Numbers& mesh, std::int64_t world) {
  Shared shared{.name = std::move(name), .shape = {}, .placements = {}, .indices = {}};
  const int rank = *rc::gen::inRange(0, 4);
  for (int d = 0; d < rank; ++d) shared.shape.push_back(*rc::gen::inRange<std::int64_t>(0, 9));
  // Which dimension each axis divides; -1: none.
  std::vector<int> dims;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    dims.push_back(rank == 0 ? -1 : *rc::gen::inRange(-1, rank));
  }
  // The order in which the axes divide.
  std::vector<std::size_t> order(mesh.size());
  std::iota(order.begin(), order.end(), 0U);
  const bool stated = *rc::gen::arbitrary<bool>();
  const bool in_order = *rc::gen::arbitrary<bool>();
  for (std::size_t i = order.size(); !in_order && i > 1; --i) {
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  }
  const auto turn = [&](std::size_t axis) {
    return std::ranges::find(order, axis) - order.begin();
  };
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (dims[axis] < 0) {
      shared.placements.push_back(fsdp::replicate());
      continue;
    }
    // A later axis that divides before this one makes this one strided; or the order is stated.
    std::int64_t factor = 1;
    bool is_strided = false;
    for (std::size_t later = axis + 1; later < mesh.size() && !stated; ++later) {
      if (dims[later] != dims[axis] || turn(later) > turn(axis)) continue;
      factor *= mesh[later];
      is_strided = true;
    }
    const std::int64_t dim = *rc::gen::arbitrary<bool>() ? dims[axis] : dims[axis] - rank;
    shared.placements.push_back(is_strided ? fsdp::strided(dim, factor) : fsdp::shard(dim));
  }
  if (stated) {
    std::vector<Opcodes> entries;
    for (int d = 0; d < rank; ++d) {
      Numbers axes;
      for (const std::size_t axis : order) {
        if (dims[axis] == d) axes.push_back(static_cast<std::int64_t>(axis));
      }
      if (axes.empty()) continue;
      entries.push_back(py_global("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry") +
                        py_tuple({py_int(d), fsdp::ints(axes)}) + "\x81");
    }
    shared.order = py_tuple(entries);
  }
  for (std::int64_t r = 0; r < world; ++r) {
    const Numbers place = place_of(r, mesh);
    auto& mine = shared.indices.emplace_back();
    for (const std::int64_t extent : shared.shape) {
      mine.emplace_back(static_cast<std::size_t>(extent));
      std::iota(mine.back().begin(), mine.back().end(), 0);
    }
    for (const std::size_t axis : order) {
      if (dims[axis] < 0) continue;
      Numbers& list = mine[static_cast<std::size_t>(dims[axis])];
      list = chunk(list, mesh[axis], place[axis]);
    }
  }
  return shared;
}

/// The rank's part, padded before and behind, perhaps with its last two dimensions exchanged in
/// memory. The value of an element is its place in the whole tensor.
Opcodes local_of(TorchWriter& torch, const Shared& shared, std::size_t rank) {
  const std::vector<Numbers>& mine = shared.indices[rank];
  Numbers shape;
  for (const Numbers& list : mine) shape.push_back(static_cast<std::int64_t>(list.size()));
  std::vector<std::size_t> memory(shape.size());  // dimensions from the outermost in memory
  std::iota(memory.begin(), memory.end(), 0U);
  if (memory.size() > 1 && *rc::gen::arbitrary<bool>()) {
    std::swap(memory[memory.size() - 1], memory[memory.size() - 2]);
  }
  Numbers stride(shape.size());
  std::int64_t numel = 1;
  for (std::size_t i = memory.size(); i-- > 0;) {
    stride[memory[i]] = numel;
    numel *= shape[memory[i]];
  }
  const std::int64_t before = *rc::gen::inRange<std::int64_t>(0, 3);
  const std::int64_t behind = *rc::gen::inRange<std::int64_t>(0, 3);
  std::string values(static_cast<std::size_t>(4 * numel), '\0');
  for (std::int64_t i = 0; i < numel; ++i) {
    std::int64_t rest = i, at = 0, whole = 0;
    Numbers index(shape.size());
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
    for (std::size_t d = 0; d < shape.size(); ++d) {
      at += index[d] * stride[d];
      whole = whole * shared.shape[d] + mine[d][static_cast<std::size_t>(index[d])];
    }
    values.replace(static_cast<std::size_t>(4 * at), 4, fsdp::floats(whole, 1));
  }
  const std::string junk = fsdp::floats(-1, 1);
  std::string bytes;
  for (std::int64_t i = 0; i < before; ++i) bytes += junk;
  bytes += values;
  for (std::int64_t i = 0; i < behind; ++i) bytes += junk;
  return torch.strided("Float", shape, stride, before, before + numel + behind, bytes);
}

RC_GTEST_PROP(FsdpRanks, HaveEveryElementOfEveryTensor, ()) {
  const Numbers mesh = *rc::gen::elementOf(
      std::vector<Numbers>{{1}, {2}, {3}, {5}, {2, 2}, {3, 2}, {2, 1, 2}, {1, 3}, {2, 2, 2}});
  std::int64_t world = 1;
  for (const std::int64_t size : mesh) world *= size;
  std::vector<Shared> all;
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) all.push_back(random_shared(fmt::format("t{}", i), mesh, world));
  const bool old = *rc::gen::arbitrary<bool>();
  const TemporaryDirectory directory;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    TorchWriter torch;
    const Numbers place = place_of(rank, mesh);
    fsdp::Fields state;
    for (const Shared& shared : all) {
      const Opcodes devices = old ? fsdp::old_mesh(torch, mesh, place) : fsdp::mesh(mesh, place);
      state.emplace_back(
          shared.name,
          fsdp::dtensor(local_of(torch, shared, static_cast<std::size_t>(rank)),
                        fsdp::spec(devices, shared.placements, {{"shard_order", shared.order}}),
                        shared.shape));
    }
    directory.write(fsdp::file_name(static_cast<int>(world), static_cast<int>(rank)),
                    torch.file(py_dict(state)));
  }
  const auto files = LocalFiles::create({.engine = IoEngine::Pread}).value();
  const auto catalog = open_checkpoint(directory.path(), *files);
  if (!catalog) RC_FAIL(catalog.error().message());
  for (const Shared& shared : all) {
    const TensorId id = (*catalog)->find(shared.name).value();
    RC_ASSERT(std::ranges::equal((*catalog)->tensor(id).shape, shared.shape));
    const auto bytes = naive_tensor(**catalog, *files, TensorExpr::stored(**catalog, id));
    if (!bytes) RC_FAIL(bytes.error().message());
    std::int64_t numel = 1;
    for (const std::int64_t extent : shared.shape) numel *= extent;
    const std::string want = fsdp::floats(0, numel);
    RC_ASSERT(std::ranges::equal(*bytes, std::as_bytes(std::span(want))));
  }
}

// ---- ranks that are read by another's model

std::string text_of(const RankState& state) {
  std::string text = fmt::format("{} bytes, {} notes\n", state.header_bytes, state.notes.size());
  for (const RankTensor& tensor : state.tensors) {
    const RankFacts& said = *tensor.said;
    text += fmt::format("{} {} {} [{}] {}", said.name, static_cast<int>(said.kind),
                        name(said.dtype), fmt::join(said.shape, ","), said.left_out);
    if (said.all_shards) text += fmt::format(" all [{}]", fmt::join(*said.all_shards, ","));
    for (const RankTensor::Piece& piece : tensor.pieces) {
      text += fmt::format(" {{[{}] [{}] [{}] {} of {} at {}}}", fmt::join(piece.begin, ","),
                          fmt::join(piece.local.shape, ","), fmt::join(piece.local.stride, ","),
                          piece.local.offset, piece.bytes.size(), piece.bytes.begin);
    }
    text += "\n";
  }
  return text;
}

/// The files of ranks, which one reader reads as readers of their own do. How many were parsed.
std::size_t parsed_of(const std::vector<std::string>& ranks) {
  MemorySource source;
  const auto world = static_cast<std::uint32_t>(ranks.size());
  FsdpRankReader together(source, world, "");
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const FileId file = source.add_text(
        fsdp::file_name(static_cast<int>(world), static_cast<int>(rank)), ranks[rank]);
    const auto by_model = together.read(file, rank);
    const auto by_itself = FsdpRankReader(source, world, "").read(file, rank);
    const auto said = [](const Result<RankState>& read) {
      return read ? text_of(*read) : std::string(read.error().message());
    };
    EXPECT_EQ(said(by_model), said(by_itself));
  }
  return together.parsed();
}

/// Ranks of a model of three weights [rows, 2], whose parts each say where they are.
std::vector<std::string> sharded_ranks(int world, std::int64_t rows, bool of_dtensors) {
  std::vector<std::string> files;
  for (int rank = 0; rank < world; ++rank) {
    TorchWriter torch;
    fsdp::Fields state;
    std::vector<fsdp::ShardPlace> all;
    const std::int64_t each = (rows + world - 1) / world;
    for (int r = 0; r < world; ++r) {
      const std::int64_t begin = std::min(r * each, rows);
      all.push_back({{begin, 0}, {std::min(begin + each, rows) - begin, 2}});
    }
    const fsdp::ShardPlace mine = all[static_cast<std::size_t>(rank)];
    const Opcodes device = fsdp::mesh({world}, {rank});
    for (const std::string_view name : {"model.a", "model.b", "model.c"}) {
      const Opcodes local = torch.tensor("Float", mine.sizes, fsdp::floats(0, 2 * mine.sizes[0]));
      std::vector<Opcodes> shards;
      if (mine.sizes[0] > 0) shards.push_back(fsdp::local_shard(local, mine));
      state.emplace_back(
          name, of_dtensors ? fsdp::dtensor(local, fsdp::spec(device, {fsdp::shard(0)}), {rows, 2})
                            : fsdp::sharded(shards, all, {rows, 2}));
    }
    state.emplace_back("model.frequencies", torch.tensor("Float", {3}, fsdp::floats(7, 3)));
    files.push_back(torch.file(py_dict(state)));
  }
  return files;
}

TEST(FsdpRankReader, ParsesOneFileAndReadsTheOthersByIt) {
  for (const bool of_dtensors : {true, false}) {
    EXPECT_EQ(parsed_of(sharded_ranks(24, 24, of_dtensors)), 1U) << of_dtensors;
    // Ranks with parts, with a smaller one, with none.
    EXPECT_EQ(parsed_of(sharded_ranks(24, 27, of_dtensors)), 3U) << of_dtensors;
  }
}

TEST(FsdpRankReader, TheDeviceOfARankIsNoReasonToParseItsFile) {
  std::vector<std::string> files = sharded_ranks(4, 8, true);
  for (std::size_t rank = 1; rank < files.size(); ++rank) {
    for (std::size_t at = 0; (at = files[rank].find("cpu", at)) != std::string::npos; ++at) {
      files[rank][at] = static_cast<char>('0' + rank);
    }
  }
  EXPECT_EQ(parsed_of(files), 1U);
}

TEST(FsdpRankReader, RanksThatSayTheSameShareIt) {
  MemorySource source;
  FsdpRankReader reader(source, 8, "");
  std::vector<RankState> states;
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    const FileId file = source.add_text(fsdp::file_name(8, static_cast<int>(rank)),
                                        sharded_ranks(8, 16, false)[rank]);
    states.push_back(reader.read(file, rank).value());
  }
  for (const RankState& state : states) {
    EXPECT_EQ(state.tensors[1].said->all_shards, states[0].tensors[1].said->all_shards);
    EXPECT_EQ(state.tensors[3].said, states[0].tensors[3].said);
  }
}

TEST(FsdpRankReader, ReadsThePartsOfOtherRanksInEachFile) {
  // Ranks 2 and 3 have no part, so only their lists of all parts can differ.
  std::vector<std::string> files = sharded_ranks(4, 2, false);
  const std::string_view name = "shard_sizes";
  files[3].replace(files[3].rfind(name), name.size(), "shard_sites");
  EXPECT_EQ(parsed_of(files), 2U);
}

RC_GTEST_PROP(FsdpRankReader, ReadsWhatItReadsWithoutModels, ()) {
  const int world = *rc::gen::inRange(1, 5);
  auto files = sharded_ranks(world, *rc::gen::inRange(1, 12), *rc::gen::arbitrary<bool>());
  // Bytes of pickles that are others: some leave them alike, some break them.
  for (int changes = *rc::gen::inRange(0, 4); changes > 0; --changes) {
    std::string& file = files[*rc::gen::inRange<std::size_t>(0, files.size())];
    const std::size_t begin = file.find("\x80\x02}("), end = file.find("u.", begin);
    file[*rc::gen::inRange(begin, end)] = static_cast<char>(*rc::gen::inRange(0, 4));
  }
  parsed_of(files);
  RC_ASSERT(!testing::Test::HasFailure());
}

// ---- a small run

struct SmallRun {
  int world = 2;
  std::string folder = {};
  fsdp::Fields more = {};  // of every rank

  /// A model of one weight [4, 2], of which each of two ranks has two rows.
  void write(const TemporaryDirectory& out) const {
    for (int rank = 0; rank < world; ++rank) {
      TorchWriter torch;
      const std::int64_t rows = 4 / world;
      fsdp::Fields state{
          {"model.norm.weight",
           fsdp::dtensor(torch.tensor("Float", {rows, 2}, fsdp::floats(rank * rows * 2, rows * 2)),
                         fsdp::spec(fsdp::mesh({world}, {rank}), {fsdp::shard(0)}), {4, 2})}};
      state.insert(state.end(), more.begin(), more.end());
      out.write(folder + fsdp::file_name(world, rank), torch.file(py_dict(state)));
    }
  }
};

std::string facts_of(const Catalog& catalog, std::string_view subject) {
  for (const Note& fact : catalog.facts()) {
    if (fact.subject == subject) return fact.text;
  }
  return {};
}

TEST(FsdpRanks, PartsAlongTheFirstDimensionAreOneStorage) {
  const TemporaryDirectory directory;
  SmallRun().write(directory);
  const Opened opened = open_source(directory.path());
  const Catalog& catalog = *opened.catalog;
  EXPECT_EQ(catalog.kind(), "fsdp_ranks");
  EXPECT_EQ(facts_of(catalog, "ranks"), "2");
  const StoredTensor& tensor = catalog.tensors()[0];
  EXPECT_EQ(tensor.name, "model.norm.weight");
  EXPECT_THAT(tensor.boxes, IsEmpty());
  EXPECT_EQ(catalog.storage(tensor).extents.size(), 2U);
}

TEST(FsdpRanks, OneFileOfAWorldOfOneOpensByItself) {
  const TemporaryDirectory directory;
  SmallRun{.world = 1}.write(directory);
  EXPECT_EQ(open_source(directory / fsdp::file_name(1, 0)).catalog->tensors().size(), 1U);
}

TEST(FsdpRanks, TensorsThatEachRankHasWholeAreOne) {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    TorchWriter torch;
    directory.write(
        fsdp::file_name(2, rank),
        torch.file(py_dict({{"model.inv_freq", torch.tensor("Float", {3}, fsdp::floats(7, 3))}})));
  }
  const Opened opened = open_source(directory.path());
  ASSERT_EQ(opened.catalog->tensors().size(), 1U);
  EXPECT_THAT(opened.catalog->tensors()[0].shape, ElementsAre(3));
}

TEST(FsdpRanks, OtherNamesOfTheSamePartsAreAliases) {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    TorchWriter torch;
    // One tensor in the pickle's memo, below two names.
    const Opcodes made = torch.tensor("Float", {1}, fsdp::floats(rank, 1)) + "q\1" + "0";
    const auto named = [&](const std::string& name) {
      return std::pair(
          name, fsdp::dtensor("h\1", fsdp::spec(fsdp::mesh({2}, {rank}), {fsdp::shard(0)}), {2}));
    };
    directory.write(fsdp::file_name(2, rank),
                    torch.file(made + py_dict({named("lm_head.weight"), named("embed.weight")})));
  }
  const Opened opened = open_source(directory.path());
  const Catalog& catalog = *opened.catalog;
  ASSERT_EQ(catalog.tensors().size(), 2U);
  EXPECT_NE(catalog.tensors()[0].alias, catalog.tensors()[1].alias);
  EXPECT_EQ(facts_of(catalog, "shared"), "1");
}

TEST(FsdpRanks, ShardedTensorsSayWhereTheirPartsLie) {
  const TemporaryDirectory directory;
  const std::vector<fsdp::ShardPlace> all{{{0, 0}, {3, 2}}, {{3, 0}, {1, 2}}};
  for (int rank = 0; rank < 3; ++rank) {  // the third has none
    TorchWriter torch;
    std::vector<Opcodes> local;
    if (rank < 2) {
      const fsdp::ShardPlace& place = all[static_cast<std::size_t>(rank)];
      local.push_back(fsdp::local_shard(
          torch.tensor("Float", place.sizes, fsdp::floats(6 * rank, 2 * place.sizes[0])), place));
    }
    directory.write(fsdp::file_name(3, rank),
                    torch.file(py_dict({{"w", fsdp::sharded(local, all, {4, 2})}})));
  }
  const Opened opened = open_source(directory.path());
  const auto bytes =
      naive_tensor(*opened.catalog, *opened.files, TensorExpr::stored(*opened.catalog, 0));
  ASSERT_TRUE(bytes) << bytes.error().message();
  const std::string want = fsdp::floats(0, 8);
  EXPECT_TRUE(std::ranges::equal(*bytes, std::as_bytes(std::span(want))));
}

TEST(FsdpRanks, AMeshWithoutThisRanksPlaceHasItInTheListOfRanks) {
  for (const bool old : {false, true}) {
    const TemporaryDirectory directory;
    for (int rank = 0; rank < 4; ++rank) {
      TorchWriter torch;
      const Opcodes devices = old ? fsdp::mesh_with({{"mesh", fsdp::ranks(torch, {2, 2})},
                                                     {"_coordinate_on_dim", py_none()}})
                                  : fsdp::mesh_with({{"_layout", fsdp::layout({2, 2})},
                                                     {"_rank_map", fsdp::ranks(torch, {4})}});
      directory.write(
          fsdp::file_name(4, rank),
          torch.file(py_dict(
              {{"w", fsdp::dtensor(torch.tensor("Float", {1}, fsdp::floats(rank, 1)),
                                   fsdp::spec(devices, {fsdp::shard(0), fsdp::shard(0)}), {4})}})));
    }
    const Opened opened = open_source(directory.path());
    const auto bytes =
        naive_tensor(*opened.catalog, *opened.files, TensorExpr::stored(*opened.catalog, 0));
    ASSERT_TRUE(bytes) << bytes.error().message();
    const std::string want = fsdp::floats(0, 4);
    EXPECT_TRUE(std::ranges::equal(*bytes, std::as_bytes(std::span(want)))) << old;
  }
}

TEST(FsdpRanks, ALayoutMayBeOfOneShape) {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 4; ++rank) {
    TorchWriter torch;
    // As torch 2.10 to 2.12: (2, (1, 2)) has a second axis of two flattened ones.
    const Opcodes layout =
        py_object("torch.distributed._mesh_layout", "_MeshLayout",
                  py_dict({{"shape", py_tuple({py_int(2), fsdp::ints({1, 2})})},
                           {"stride", py_tuple({py_int(2), fsdp::ints({2, 1})})}}));
    const Opcodes devices = fsdp::mesh_with(
        {{"_layout", layout}, {"_coordinate_on_dim", py_ints({rank / 2, rank % 2})}});
    directory.write(
        fsdp::file_name(4, rank),
        torch.file(
            py_dict({{"w", fsdp::dtensor(torch.tensor("Float", {1}, fsdp::floats(rank % 2, 1)),
                                         fsdp::spec(devices, {fsdp::replicate(), fsdp::shard(0)}),
                                         {2})}})));
  }
  EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 1U);
}

TEST(FsdpRanks, TheRunsRootOpensTheStepThatItNames) {
  const TemporaryDirectory directory;
  SmallRun{.folder = "global_step_5/actor/"}.write(directory);
  SmallRun{.folder = "global_step_10/actor/"}.write(directory);
  SmallRun{.folder = "global_step_10/critic/"}.write(directory);
  directory.write("global_step_10/data.pt", TorchWriter().file(py_dict({})));
  EXPECT_THAT(error_of(directory.path()), HasSubstr("3 directories with files of ranks"));
  EXPECT_EQ(facts_of(*open_source(directory.path(), {.step = 5}).catalog, "directory"),
            "global_step_5/actor/");
  directory.write("latest_checkpointed_iteration.txt", "10\n");
  const Opened opened = open_source(directory.path());
  EXPECT_EQ(facts_of(*opened.catalog, "directory"), "global_step_10/actor/");
  EXPECT_THAT(notes_by_subject(*opened.catalog)["global_step_10/critic/"],
              HasSubstr("another model of the training"));
  EXPECT_EQ(facts_of(*open_source(directory / "global_step_10").catalog, "directory"), "actor/");
}

TEST(FsdpRanks, OfTwoWorldsTheWholeOneThatIsNamedCounts) {
  const TemporaryDirectory directory;
  SmallRun().write(directory);
  SmallRun{.world = 4}.write(directory);
  EXPECT_THAT(error_of(directory.path()), HasSubstr("files of runs on 2 and on 4 ranks"));
  directory.write("fsdp_config.json", R"({"FSDP_version": 2, "world_size": 4})");
  EXPECT_EQ(facts_of(*open_source(directory.path()).catalog, "ranks"), "4");
  std::filesystem::remove(directory / fsdp::file_name(4, 3));
  EXPECT_THAT(error_of(directory.path()), HasSubstr("files of runs on 2 and on 4 ranks"));
}

TEST(FsdpRanks, TheConfigurationIsTheOneInItsFolder) {
  const TemporaryDirectory directory;
  SmallRun{.folder = "actor/"}.write(directory);
  directory.write("config.json", R"({"model_type": "of the run"})");
  directory.write("actor/huggingface/config.json", R"({"model_type": "llama"})");
  directory.write("actor/huggingface/tokenizer.json", "{}");
  directory.write("actor/huggingface/model.safetensors", "whole weights");
  directory.write("actor/optim_world_size_2_rank_0.pt", "never read");
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(opened.catalog->model().config.value_or(""), HasSubstr("llama"));
  ASSERT_EQ(opened.catalog->model().side_files.size(), 1U);
  EXPECT_EQ(opened.catalog->model().side_files[0].path, "tokenizer.json");
  auto notes = notes_by_subject(*opened.catalog);
  EXPECT_THAT(notes["actor/optim_world_size_*"], HasSubstr("never read"));
  EXPECT_THAT(notes["actor/huggingface/*.safetensors"], HasSubstr("never read"));
}

TEST(FsdpRanks, LoraPartsAloneAreSaidToBeSuch) {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    TorchWriter torch;
    directory.write(fsdp::file_name(2, rank),
                    torch.file(py_dict({{"model.q_proj.lora_A.default.weight",
                                         torch.tensor("Float", {2}, fsdp::floats(0, 2))}})));
  }
  directory.write("lora_train_meta.json",
                  R"({"r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM"})");
  directory.write("huggingface/config.json", R"({"model_type": "llama"})");
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(facts_of(*opened.catalog, "LoRA"),
              HasSubstr("LoRA parts alone (r 8, lora_alpha 16), without the base model"));
  EXPECT_FALSE(opened.catalog->model().config);
}

TEST(FsdpRanks, LoraPartsBesideAModelAreCounted) {
  const TemporaryDirectory directory;
  TorchWriter torch;
  directory.write(
      fsdp::file_name(1, 0),
      torch.file(py_dict({{"a.lora_A.weight", torch.tensor("Float", {1}, "wxyz")},
                          {"a.base_layer.weight", torch.tensor("Float", {1}, "wxyz")}})));
  EXPECT_EQ(facts_of(*open_source(directory.path()).catalog, "LoRA"),
            "1 of 2 tensors are LoRA parts, which no view merges");
}

TEST(FsdpRanks, PartsThatFilesShareAreNotKeptInAnyNumber) {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 7; ++rank) {
    TorchWriter torch;
    // One shard in the pickle's memo, in a list two thousand times.
    const fsdp::ShardPlace place{Numbers(64, 0), Numbers(64, 1)};
    const Opcodes shard =
        fsdp::local_shard(torch.tensor("Float", place.sizes, "wxyz"), place) + "q\1" + "0";
    const std::vector<Opcodes> local(2000, "h\1");
    directory.write(fsdp::file_name(7, rank),
                    torch.file(shard + py_dict({{"w", fsdp::sharded(local, {}, place.sizes)}})));
  }
  EXPECT_THAT(error_of(directory.path()),
              HasSubstr("its parts and those before it need more than"));
}

TEST(FsdpRanks, AreNotTakenForFilesOfTensorParallelism) {
  const TemporaryDirectory directory;
  SmallRun().write(directory);
  EXPECT_THAT(error_of(directory / fsdp::file_name(2, 1)),
              HasSubstr("rank 1 of 2: it has its part of each tensor alone (open the directory"));
}

}  // namespace
}  // namespace ckfs
