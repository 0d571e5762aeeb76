// Checkpoints that are wide where others are long: hundreds of files behind one mebibyte of a view;
// and one open file that many threads read at once. Every byte is compared with what was written.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <latch>
#include <random>
#include <thread>

#include <ckfs/checkpoint.h>

#include "api/open_prepared.h"
#include "source/zero_writer.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

template <typename T>
T value_of(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().message();
    std::abort();
  }
  return *std::move(result);
}

/// What a view's only file of tensors must hold behind its header.
struct Expected {
  TemporaryDirectory directory;
  std::string view;
  std::string data;
};

ViewFile open_file(const Checkpoint& checkpoint, const std::string& view) {
  return value_of(value_of(checkpoint.view(view)).open("model.safetensors"));
}

std::uint64_t data_begin(ViewFile& file) {
  std::uint64_t length = 0;
  value_of(file.read(0, std::as_writable_bytes(std::span(&length, 1))));
  return 8 + length;
}

/// A ZeRO run of `world` ranks whose parameters have their names in alphabetical order.
void write_zero(Expected& expected, int stage, std::int64_t world) {
  ZeroRun run;
  run.stage = stage;
  run.world = world;
  run.groups.emplace_back();
  for (const auto& [name, shape] :
       {std::pair<std::string, std::vector<std::int64_t>>{"a", {world, 97}},
        {"b", {5}},
        {"c", {311, world + 3}},
        {"d", {7 * world + 1}}}) {
    run.groups[0].push_back({name, shape});
  }
  const ZeroWriter writer(run);
  writer.write(expected.directory, "global_step1");
  expected.directory.write("latest", "global_step1");
  expected.view = "fp32-consolidated";
  for (const ZeroParameter& parameter : run.groups[0])
    expected.data += writer.value(parameter.name);
}

void check(const Expected& expected, const Resources& use, const TestOptions& tests = {}) {
  const Checkpoint checkpoint =
      value_of(open_for_tests(expected.directory.path(), {.use = use}, tests));
  ViewFile file = open_file(checkpoint, expected.view);
  const std::uint64_t begin = data_begin(file);
  ASSERT_EQ(file.info().size, begin + expected.data.size());
  std::string got(expected.data.size(), '\0');
  ASSERT_EQ(value_of(file.read(begin, std::as_writable_bytes(std::span(got)))), got.size());
  EXPECT_TRUE(got == expected.data);
  std::mt19937_64 random(4);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t at = random() % expected.data.size();
    const std::uint64_t size = std::min<std::uint64_t>(expected.data.size() - at, random() % 9000);
    std::string piece(size, '\0');
    value_of(file.read(begin + at, std::as_writable_bytes(std::span(piece))));
    ASSERT_TRUE(piece == expected.data.substr(at, size)) << at << " " << size;
  }
}

TEST(Wide, AMebibyteOfMoreThan256FilesHasTheirBytes) {
  Expected expected;
  write_zero(expected, 3, 300);  // each rank has a piece of each parameter
  ASSERT_LT(expected.data.size(), std::size_t{1} << 20);
  for (const IoEngine io : {IoEngine::Auto, IoEngine::Pread}) {
    check(expected, {.io = io});
    check(expected, {.io = io, .threads = 1}, {.tile_bytes = 4096});
  }
}

TEST(Wide, ARunOfMoreThan64RanksHasTheirBytes) {
  for (const int stage : {1, 2, 3}) {
    Expected expected;
    write_zero(expected, stage, 70);
    check(expected, {});
  }
}

/// Values of F8_E4M3 by the definition; 7f and ff are NaN and not used here.
float of_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7) / 8;
  const float value =
      exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
  return (code & 0x80) != 0 ? -value : value;
}

/// FP8 matrices with a scale, a power of two, for each 128 x 128 block: a BF16 of the view is then
/// the upper half of an F32, without rounding.
void write_fp8(Expected& expected) {
  constexpr std::int64_t kRows = 640;
  constexpr std::int64_t kColumns = 1536;
  constexpr std::int64_t kAcross = kColumns / 128;
  std::mt19937_64 random(9);
  std::string header = "{";
  std::string stored;
  const auto entry = [&](const std::string& name, const char* dtype, std::int64_t rows,
                         std::int64_t columns, const std::string& bytes) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},{}]}})",
                          header.size() == 1 ? "" : ",", name, dtype, rows, columns, stored.size(),
                          stored.size() + bytes.size());
    stored += bytes;
  };
  for (const char* name : {"model.a.weight", "model.b.weight", "model.c.weight"}) {
    std::string codes;
    std::string scales;
    std::vector<float> values;
    for (std::int64_t block = 0; block < kRows / 128 * kAcross; ++block) {
      values.push_back(std::ldexp(1.0F, static_cast<int>(random() % 12) - 6));
      scales += little_endian(std::bit_cast<std::uint32_t>(values.back()));
    }
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      auto code = static_cast<std::uint8_t>(random());
      if ((code & 0x7f) == 0x7f) code = 0;
      codes += static_cast<char>(code);
      const std::int64_t block = i / kColumns / 128 * kAcross + i % kColumns / 128;
      const float scaled = of_e4m3(code) * values[static_cast<std::size_t>(block)];
      expected.data +=
          little_endian(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scaled) >> 16));
    }
    entry(name, "F8_E4M3", kRows, kColumns, codes);
    entry(std::string(name) + "_scale_inv", "F32", kRows / 128, kAcross, scales);
  }
  header += "}";
  header += std::string((8 - header.size() % 8) % 8, ' ');
  expected.directory.write("model.safetensors",
                           little_endian(std::uint64_t{header.size()}) + header + stored);
  expected.directory.write("config.json",
                           R"({"torch_dtype": "bfloat16", "quantization_config": )"
                           R"({"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  expected.view = "bf16-safetensors";
}

/// Eight threads on one open file: some read it in order, in turns with the others, some anywhere.
void read_at_once(const Expected& expected, const Resources& use, const TestOptions& tests = {}) {
  const Checkpoint checkpoint =
      value_of(open_for_tests(expected.directory.path(), {.use = use}, tests));
  ViewFile file = open_file(checkpoint, expected.view);
  const std::uint64_t begin = data_begin(file);
  std::atomic<std::uint64_t> next{0};
  std::latch start(8);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      start.arrive_and_wait();
      for (int i = 0; i < 150; ++i) {
        const std::uint64_t size = random() % (std::uint64_t{1} << (1 + random() % 20)) + 1;
        const std::uint64_t at = t % 2 == 0 ? next.fetch_add(size) % expected.data.size()
                                            : random() % expected.data.size();
        const std::uint64_t count = std::min(size, expected.data.size() - at);
        std::string got(count, '\0');
        if (i % 2 == 0) {
          const auto read = file.read(begin + at, std::as_writable_bytes(std::span(got)));
          if (!read || *read != count) ++wrong;
        } else if (const auto lent = file.read(begin + at, count); lent && lent->size() == count) {
          std::memcpy(got.data(), lent->data(), count);
        } else {
          ++wrong;
        }
        if (std::memcmp(got.data(), expected.data.data() + at, count) != 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OneOpenFile, ReadByEightThreadsAtOnceHasItsBytes) {
  Expected expected;
  write_fp8(expected);
  read_at_once(expected, {});
  read_at_once(expected, {.memory = 64 << 20, .threads = 3}, {.tile_bytes = 4096});
}

TEST(OneOpenFile, OfManyRanksReadByEightThreadsAtOnceHasItsBytes) {
  Expected expected;
  write_zero(expected, 3, 80);
  read_at_once(expected, {});
}

}  // namespace
}  // namespace ckfs
