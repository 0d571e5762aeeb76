// Whether a copy of a view is right: byte for byte, or by digests.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include <ckfs/check.h>
#include <ckfs/checkpoint.h>

namespace ckfs {

/// The members of `ckfs verify --json` that come from a result of VerifyOptions::sample `sample`.
nlohmann::ordered_json json_members(const VerifyResult& result, double sample);

/// What byte `offset` of a file is: "tensor NAME, element [1, 2]", "the header"...
/// Requires: file < View::files().size(), offset < its size.
std::string place_in_view(const View& view, std::size_t file, std::uint64_t offset);

}  // namespace ckfs
