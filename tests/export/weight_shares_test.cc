#include "export/weight_shares.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>

#include "api/checkpoint_impl.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

class WeightSharesOfAView : public testing::Test {
 protected:
  void SetUp() override {
    std::string header;
    std::size_t end = 0;
    const auto add = [&](const std::string& name, std::size_t rows, std::size_t columns) {
      header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{},{}],"data_offsets":[{},{}]}})",
                            header.empty() ? "" : ",", name, rows, columns, end,
                            end + rows * columns * 2);
      end += rows * columns * 2;
    };
    add("model.embed_tokens.weight", 20'000, 1024);  // 40 MB, in three runs
    for (int layer = 0; layer < 12; ++layer) {
      for (const char* name : {"k", "o", "q", "v"}) {
        add(fmt::format("model.layers.{}.self_attn.{}_proj.weight", layer, name), 512, 1024);
      }
    }
    directory_.write("model.safetensors",
                     ckfs::safetensors_file("{" + header + "}", std::string(end, '\0')));
    directory_.write("config.json", R"({"model_type":"llama"})");
    Result<Checkpoint> opened =
        Checkpoint::open(directory_.path(), {.use = {.memory = 64_MiB, .threads = 1}});
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(*opened));
  }

  View view(const std::string& name) const {
    Result<View> found = checkpoint_->view(name);
    EXPECT_TRUE(found.has_value()) << found.error().message();
    return *std::move(found);
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(WeightSharesOfAView, CoverEachByteOnceAndSharePages) {
  const View quantized = view("fp8-safetensors");
  for (const unsigned parts : {1U, 2U, 7U}) {
    const auto shares = weight_shares(quantized, parts);
    ASSERT_TRUE(shares);
    std::map<std::size_t, std::vector<std::pair<ByteRange, std::size_t>>> places;
    for (std::size_t rank = 0; rank < parts; ++rank) {
      EXPECT_FALSE(shares->ranks[rank].empty());
      for (const SourceStep& step : shares->ranks[rank].steps) {
        for (const ExportStep& piece : step.pieces) {
          places[piece.file].emplace_back(piece.range, rank);
        }
      }
    }
    std::size_t file = 0;
    for (const FileInfo& info : quantized.files()) {
      auto& pieces = places[file];
      std::ranges::sort(pieces, {}, [](const auto& piece) { return piece.first.begin; });
      std::uint64_t at = 0;
      std::map<std::uint64_t, std::set<std::size_t>> writers;  // of each page
      for (const auto& [range, rank] : pieces) {
        EXPECT_EQ(range.begin, at);
        at = range.end;
        const ByteRange own = own_bytes(*shares, {file, range});
        if (own.empty()) continue;
        writers[own.begin / kSplitUnit].insert(rank);
        writers[(own.end - 1) / kSplitUnit].insert(rank);
      }
      EXPECT_EQ(at, info.size);
      for (const auto& [page, ranks] : writers) EXPECT_EQ(ranks.size(), 1U) << page;
      ++file;
    }
  }
}

TEST_F(WeightSharesOfAView, DivideNoSetThatSharesALargestValue) {
  const View quantized = view("ct-safetensors@scheme=NVFP4A16");
  const Definition& definition = *impl_of(quantized).definition;
  ASSERT_FALSE(definition.sets.empty());
  const auto shares = weight_shares(quantized, 5);
  ASSERT_TRUE(shares);
  std::map<std::uint32_t, std::set<std::size_t>> writers;  // of each set
  for (std::size_t rank = 0; rank < 5; ++rank) {
    for (const SourceStep& step : shares->ranks[rank].steps) {
      for (const ExportStep& piece : step.pieces) {
        const FileLayout layout = impl_of(quantized).files->lay_out(piece.file);
        const Segment& segment = layout.segments[layout.find(piece.range.begin)];
        if (segment.kind != Segment::Kind::Tensor) continue;
        if (const auto made = layout.quantized(segment.id)) {
          writers[made->weight->set].insert(rank);
        }
      }
    }
  }
  EXPECT_EQ(writers.size(), definition.sets.size());
  for (const auto& [set, ranks] : writers) EXPECT_EQ(ranks.size(), 1U) << set;
}

TEST_F(WeightSharesOfAView, AreNoneWhereRangesAreBetter) {
  EXPECT_FALSE(weight_shares(view("bf16-safetensors"), 2));  // nothing is quantized
  EXPECT_FALSE(weight_shares(view("fp8-safetensors"), 1000));
}

}  // namespace
}  // namespace ckfs
