// Tensors of torch files, read in the dullest way, for the tests of src/format.
#pragma once

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/checked.h"
#include "format/torch_file.h"
#include "support/memory_source.h"

namespace ckfs {

/// The bytes of a file below the folder of test data; a test that lacks it fails.
inline std::vector<std::byte> read_data(const std::filesystem::path& path) {
  std::ifstream in(std::filesystem::path(CKFS_TEST_DATA) / path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::vector<std::byte> bytes;
  for (std::istreambuf_iterator<char> at(in), end; at != end; ++at) {
    bytes.push_back(static_cast<std::byte>(*at));
  }
  return bytes;
}

inline ByteRange whole(const ByteSource& source, FileId file) {
  return {0, source.size(file)};
}

/// The elements of a tensor in row-major order, read one by one.
inline Result<std::vector<std::byte>> values_of(ByteSource& source, FileId file,
                                                const TorchFile& torch, const TorchTensor& tensor) {
  CKFS_TRY(const ByteRange storage, torch.storage_bytes(tensor.storage));
  const auto width = static_cast<std::uint64_t>(bits(tensor.dtype) / 8);
  const std::int64_t numel = *checked_numel(tensor.shape);
  std::vector<std::byte> bytes;
  std::vector<std::byte> element(width);
  for (std::int64_t i = 0; i < numel; ++i) {
    std::int64_t rest = i;
    std::int64_t place = tensor.offset;
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      place += rest % tensor.shape[d] * tensor.stride[d];
      rest /= tensor.shape[d];
    }
    const std::uint64_t at = storage.begin + static_cast<std::uint64_t>(place) * width;
    EXPECT_LE(at + width, storage.end);
    CKFS_TRY_VOID(source.read_at(file, at, element));
    bytes.insert(bytes.end(), element.begin(), element.end());
  }
  return bytes;
}

}  // namespace ckfs
