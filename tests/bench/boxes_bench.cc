// What a read costs because its tensor has many boxes: random reads of one piece of a tensor, from
// a checkpoint that holds it in one piece and from one that holds it in many, in process.
//
//   boxes_bench ONE MANY VIEW PIECE
//
// Both checkpoints show the same model.safetensors in VIEW, whose tensor data is made of pieces of
// PIECE bytes (tests/tools/make_dcp.py). Prints one line: seconds a read of ONE and of MANY, and
// the median over passes of the ratio of neighbours.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <ckfs/checkpoint.h>

namespace {

using namespace ckfs;

template <typename T>
T get(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "boxes_bench: %s\n", result.error().message().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

class Side {
 public:
  Side(const char* source, const char* view, std::uint64_t piece)
      : checkpoint_(get(Checkpoint::open(source, {.use = {.threads = 1}}))),
        file_(get(get(checkpoint_.view(view)).open("model.safetensors"))),
        piece_(piece),
        buffer_(piece) {
    std::uint64_t length = 0;
    get(file_.read(0, std::as_writable_bytes(std::span(&length, 1))));
    begin_ = length + sizeof length;
  }

  std::uint64_t pieces() const { return (file_.info().size - begin_) / piece_; }

  /// Seconds a read over `places`.
  double pass(const std::vector<std::uint64_t>& places) {
    const auto begin = std::chrono::steady_clock::now();
    for (const std::uint64_t place : places) get(file_.read(begin_ + place * piece_, buffer_));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return seconds.count() / static_cast<double>(places.size());
  }

  const std::vector<std::byte>& last() const { return buffer_; }

 private:
  Checkpoint checkpoint_;
  ViewFile file_;
  std::uint64_t piece_;
  std::uint64_t begin_ = 0;
  std::vector<std::byte> buffer_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::uint64_t piece = std::strtoull(argv[4], nullptr, 10);
  Side one(argv[1], argv[3], piece);
  Side many(argv[2], argv[3], piece);
  if (one.pieces() != many.pieces()) {
    std::fprintf(stderr, "boxes_bench: %s: %llu pieces, %s has %llu\n", argv[2],
                 static_cast<unsigned long long>(many.pieces()), argv[1],
                 static_cast<unsigned long long>(one.pieces()));
    return 1;
  }
  // Where a piece lies is found when it is first read; here it is what comes after that.
  std::vector<std::uint64_t> all(one.pieces());
  std::iota(all.begin(), all.end(), std::uint64_t{0});
  one.pass(all);
  many.pass(all);
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::uint64_t> any(0, one.pieces() - 1);
  std::vector<double> seconds[2], ratios;
  for (int pass = 0; pass < 12; ++pass) {
    std::vector<std::uint64_t> places(4000);
    std::ranges::generate(places, [&] { return any(random); });
    const double of_one = one.pass(places);
    const double of_many = many.pass(places);
    if (one.last() != many.last()) {
      std::fprintf(stderr, "boxes_bench: piece %llu differs\n",
                   static_cast<unsigned long long>(places.back()));
      return 1;
    }
    if (pass == 0) continue;  // a warm-up
    seconds[0].push_back(of_one);
    seconds[1].push_back(of_many);
    ratios.push_back(of_many / of_one);
  }
  std::printf("%.9f %.9f %.4f\n", median(seconds[0]), median(seconds[1]), median(ratios));
  return 0;
}
