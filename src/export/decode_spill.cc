#include "export/decode_spill.h"

#include <spdlog/spdlog.h>

#include "api/inside.h"
#include "chunks/chunk_source.h"
#include "chunks/decoded_chunks.h"
#include "export/export_record.h"

namespace ckfs {

DecodeSpill::DecodeSpill(const View& view, const OutDirectory& out, std::uint64_t spare)
    : chunks_(chunk_source_of(view)) {
  if (chunks_ == nullptr || chunks_->spill_limit() > 0) return;
  if (spare < DecodedChunks::kBlock) return;  // 0 would mean without a limit
  Result<UniqueFd> file = out.open_nameless(std::string(kRecordName));
  if (!file) {
    spdlog::info("{} (what --memory has no room for is decoded again)", file.error().message());
    return;
  }
  auto spill =
      std::make_shared<Spill>(SpillFile::adopt(out.name() + " (decoded chunks)", *std::move(file)),
                              DecodedChunks::kBlock, spare);
  if (chunks_->add_spill(spill, true)) spill_ = std::move(spill);
}

DecodeSpill::~DecodeSpill() {
  if (spill_ != nullptr) chunks_->remove_spill();
}

}  // namespace ckfs
