// The Hugging Face hub: `hf://org/name[@revision][/folder]` (hub's API documentation; what
// huggingface_hub does).
//
// The revision is resolved to its commit once; one listing of the tree gives names, sizes and
// hashes. Bytes of a large file come from a signed URL of another host, which the hub gives for an
// hour: it is kept for the file, so that a file costs one call of the hub's resolver an hour, and
// not one a range (which the hub counts, and refuses).
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "fetcher/service.h"

namespace ckfs {

/// Errors: InvalidArgument (HF_ENDPOINT is not a URL), Io (HF_HUB_OFFLINE is set).
Result<std::unique_ptr<Service>> make_hub(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file);

}  // namespace ckfs
