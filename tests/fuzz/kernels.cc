// Fuzz target: the fast kernels against their plain twins, on any bits, length and alignment.
// Buffers end where the elements end, so that AddressSanitizer sees a byte too many.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "fuzz/fuzz_input.h"
#include "tensor/fast_sets.h"

namespace {

using namespace ckfs;

/// `size` bytes, `shift` bytes off from where an allocation begins.
class Buffer {
 public:
  Buffer(std::size_t size, std::size_t shift) : shift_(shift), bytes_(size + shift) {}
  std::byte* data() { return bytes_.data() + shift_; }
  const std::byte* data() const { return bytes_.data() + shift_; }
  bool operator==(const Buffer& other) const {
    return std::equal(data(), bytes_.data() + bytes_.size(), other.data(),
                      other.bytes_.data() + other.bytes_.size());
  }

 private:
  std::size_t shift_;
  std::vector<std::byte> bytes_;
};

std::size_t bytes_of(DType dtype) {
  return static_cast<std::size_t>(bits(dtype)) / 8;
}

class Case {
 public:
  explicit Case(std::span<const std::byte> bytes) : choices_(bytes) {}

  void run() {
    switch (choose(5)) {
      case 0:
        return cast();
      case 1:
        return scale_blocks();
      case 2:
        return codes();
      case 3:
        return unpack();
      default:
        return copy();
    }
  }

 private:
  std::size_t choose(std::int64_t n) { return static_cast<std::size_t>(choices_.below(n)); }

  Buffer random(std::size_t size) {
    Buffer buffer(size, choose(16));
    for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = static_cast<std::byte>(choose(256));
    return buffer;
  }

  void cast() {
    const auto from = static_cast<DType>(choose(kDTypeCount));
    const auto to = static_cast<DType>(choose(kDTypeCount));
    const CastKernel plain = find_cast(from, to, KernelSet::Reference);
    if (plain == nullptr) {
      CKFS_CHECK(find_cast(from, to) == nullptr);
      return;
    }
    const std::size_t count = choose(300);
    const Buffer in = random(count * bytes_of(from));
    const std::size_t shift = choose(16);
    Buffer want(count * bytes_of(to), shift);
    plain(in.data(), want.data(), count);
    for (const auto& [name, kernel] : fast_casts(from, to)) {
      Buffer got(count * bytes_of(to), shift);
      kernel(in.data(), got.data(), count);
      CKFS_CHECK(got == want);
    }
  }

  void scale_blocks() {
    static constexpr DType kFrom[] = {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ,
                                      DType::F8E5M2FNUZ};
    static constexpr DType kTo[] = {DType::F32, DType::F16, DType::BF16};
    const DType from = kFrom[choose(4)];
    const DType to = kTo[choose(3)];
    const std::size_t count = choose(600);
    const std::size_t block = choose(2) == 0 ? 128 : choose(200) + 1;
    const std::size_t first = choose(static_cast<std::int64_t>(block));
    const Buffer in = random(count);
    std::vector<float> scales((first + count) / block + 1);
    for (float& scale : scales) {
      scale = std::bit_cast<float>(static_cast<std::uint32_t>(choices_.bits()));
    }
    scales.resize((first + count + block - 1) / block);
    const std::size_t shift = choose(16);
    Buffer want(count * bytes_of(to), shift);
    find_scale_blocks(from, to, KernelSet::Reference)(in.data(), scales.data(), first, block,
                                                      want.data(), count);
    for (const auto& [name, kernel] : fast_scale_blocks(from, to)) {
      Buffer got(count * bytes_of(to), shift);
      kernel(in.data(), scales.data(), first, block, got.data(), count);
      CKFS_CHECK(got == want);
    }
    const std::size_t begin = std::min(count, block - first);  // one scale for all of the piece
    const float scale = scales.empty() ? 1.0F : scales.front();
    for (const auto& [name, kernel] : fast_scales(from, to)) {
      Buffer got(begin * bytes_of(to), shift);
      kernel(in.data(), scale, got.data(), begin);
      CKFS_CHECK(begin == 0 || std::memcmp(got.data(), want.data(), begin * bytes_of(to)) == 0);
    }
  }

  float any_float() { return std::bit_cast<float>(static_cast<std::uint32_t>(choices_.bits())); }

  /// Signed bytes, or codes of 4 bits, with scales and perhaps zeros.
  void codes() {
    static constexpr DType kTo[] = {DType::F32, DType::F16, DType::BF16};
    static constexpr std::size_t kBlocks[] = {1, 2, 16, 32, 64, 128};
    const DType to = kTo[choose(3)];
    const std::size_t count = choose(600) + 1;
    const std::size_t block = choose(3) == 0 ? choose(200) + 1 : kBlocks[choose(6)];
    const std::size_t first = choose(static_cast<std::int64_t>(2 * block));
    // Mostly numbers that are normal, as the fast paths want them.
    const bool any = choose(3) == 0;
    std::vector<float> scales((first + count + block - 1) / block), zeros(scales.size());
    for (float& scale : scales)
      scale = any ? any_float() : static_cast<float>(choose(999)) * 0x1p-9F;
    for (float& zero : zeros) zero = static_cast<float>(choose(16)) - 8.0F;
    const BlockScales by{scales.data(), choose(2) == 0 ? zeros.data() : nullptr, first, block};
    const bool nibbles = choose(2) == 0;
    const Buffer in = random(nibbles ? (count + 1) / 2 : count);
    NibbleTable table{.values = {}, .high_first = choose(2) == 0};
    for (std::size_t i = 0; i < 16; ++i) {
      table.values[i] = any ? any_float() : static_cast<float>(i) * 0.5F - 4.0F;
    }
    const std::size_t shift = choose(16);
    Buffer want(count * bytes_of(to), shift);
    const auto check = [&](const auto& run) {
      Buffer got(count * bytes_of(to), shift);
      run(got.data());
      CKFS_CHECK(got == want);
    };
    if (nibbles) {
      find_scale_nibbles(to, KernelSet::Reference)(in.data(), table, by, want.data(), count);
      for (const auto& [name, kernel] : fast_scale_nibbles(to)) {
        check([&](std::byte* out) { kernel(in.data(), table, by, out, count); });
      }
    } else {
      find_scale_integers(to, KernelSet::Reference)(in.data(), by, want.data(), count);
      for (const auto& [name, kernel] : fast_scale_integers(to)) {
        check([&](std::byte* out) { kernel(in.data(), by, out, count); });
      }
    }
  }

  void unpack() {
    const Packing packing{.bits = static_cast<int>(choose(8)) + 1, .in_words = choose(2) == 0};
    const auto bits = static_cast<std::size_t>(packing.bits);
    const std::size_t first = choose(40);
    const std::size_t count = choose(300) + 1;
    const std::size_t in_word = 32 / bits;
    const std::size_t all = first + count;
    const Buffer in =
        random(packing.in_words ? (all + in_word - 1) / in_word * 4 : (all * bits + 7) / 8);
    Buffer want(count, 0), got(count, 0);
    find_unpack(KernelSet::Reference)(in.data(), packing, first, want.data(), count);
    find_unpack()(in.data(), packing, first, got.data(), count);
    CKFS_CHECK(got == want);
  }

  /// A nest of up to four loops over a buffer of their own size; the target's order is a
  /// permutation of the loops, so that each of its elements is visited once.
  void copy() {
    const std::size_t width = std::size_t{1} << choose(5);
    std::vector<CopyLoop> loops(choose(5));
    std::int64_t total = 1;
    for (CopyLoop& loop : loops) {
      loop.count = std::min<std::int64_t>(choices_.below(choose(4) == 0 ? 200 : 20) + 1,
                                          std::max<std::int64_t>(1, 20'000 / total));
      total *= loop.count;
    }
    std::vector<std::size_t> order(loops.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[choose(static_cast<std::int64_t>(i))]);
    }
    std::int64_t stride = 1;
    for (const std::size_t k : order) {
      loops[k].out_stride = stride;
      stride *= loops[k].count;
    }
    std::int64_t low = 0;
    std::int64_t high = 0;
    stride = 1;
    for (std::size_t k = loops.size(); k-- > 0;) {  // dense, backwards, repeated or with gaps
      static constexpr std::int64_t kTimes[] = {1, 1, 1, -1, 0, 2};
      loops[k].in_stride = stride * kTimes[choose(6)];
      const std::int64_t reach = loops[k].in_stride * (loops[k].count - 1);
      (reach < 0 ? low : high) += reach;
      stride = std::max<std::int64_t>(1, high - low + 1);
      if (stride > 60'000) stride = 1;
    }
    const Buffer in = random(static_cast<std::size_t>(high - low + 1) * width);
    const std::byte* origin = in.data() + static_cast<std::size_t>(-low) * width;
    const std::size_t shift = choose(16);
    Buffer want(static_cast<std::size_t>(total) * width, shift);
    Buffer got(static_cast<std::size_t>(total) * width, shift);
    copy_strided(loops, width, origin, want.data(), KernelSet::Reference);
    copy_strided(loops, width, origin, got.data(), KernelSet::Fast);
    CKFS_CHECK(got == want);
  }

  FuzzChoices choices_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case(std::as_bytes(std::span(data, size))).run();
  return 0;
}
