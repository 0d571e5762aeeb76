// The cost of compressed chunks for a reader of a view. Computed from the plan alone; reads no
// byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/checkpoint_impl.h"

namespace ckfs {

struct DecodeCost {
  /// Bytes of the chunked storages that the view's tensors are made of. Absent and uncompressed
  /// chunks of such a storage count, too; ratio() is too low then.
  std::uint64_t needed = 0;
  std::uint64_t decoded = 0;  // bytes that are decoded for them
  std::uint64_t chunks = 0;   // bytes of all chunks that are decoded for them, each once

  double ratio() const {
    return needed == 0 ? 1 : static_cast<double>(decoded) / static_cast<double>(needed);
  }
  /// A higher ratio is worth a change of options.
  static constexpr double kTolerable = 1.5;
  bool is_dear() const { return ratio() > kTolerable; }
};

/// The cost of reading the files of a view one after another, in order, with so much memory and
/// spill. A tensor of more tiles than all views of real models have counts as read at once.
DecodeCost decode_cost(const View::Impl& view, std::uint64_t memory, std::uint64_t spill);

/// Options that make the cost tolerable: "--memory 4096MiB" (twice `memory`, or so many times more,
/// or 64 GiB), "--spill DIR (12 GB)", "export". Empty: no option helps, because even decoding each
/// chunk once costs too much for the few bytes that are needed of them.
std::vector<std::string> mends(const View::Impl& view, std::uint64_t memory,
                               const DecodeCost& cost);

}  // namespace ckfs
