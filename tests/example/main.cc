// ckfs-example CHECKPOINT [VIEW FILE OFFSET LENGTH]
//
// Lists the views of a checkpoint and the files of those it can give; or writes a range of a file
// to standard output. Everything comes from the public API: no mount, no copy.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string_view>
#include <utility>

#include <ckfs/checkpoint.h>

namespace {

int report(const ckfs::Error& error) {
  std::cerr << "ckfs-example: " << error.message() << '\n';
  return 1;
}

int list(const ckfs::Checkpoint& checkpoint) {
  for (const ckfs::ViewInfo& info : checkpoint.views()) {
    std::cout << info.name << ": " << info.description << '\n';
    for (const ckfs::Reason& reason : info.reasons) {
      std::cout << "  not available: " << reason.subject << ": " << reason.text << '\n';
    }
    if (!info.available) continue;
    const auto view = checkpoint.view(info.name);
    if (!view) return report(view.error());
    for (const ckfs::FileInfo& file : view->files()) {
      std::cout << "  " << file.path << ' ' << file.size << ' ' << ckfs::name(file.exactness)
                << '\n';
    }
  }
  return 0;
}

int copy_range(const ckfs::Checkpoint& checkpoint, std::string_view view_name,
               std::string_view path, std::uint64_t offset, std::uint64_t length) {
  constexpr std::uint64_t kPiece = 1 << 20;
  const auto view = checkpoint.view(view_name);
  if (!view) return report(view.error());
  auto file = view->open(path);
  if (!file) return report(file.error());
  while (length > 0) {
    const auto piece =
        file->read(offset, static_cast<std::size_t>(length < kPiece ? length : kPiece));
    if (!piece) return report(piece.error());
    if (piece->size() == 0) break;  // the end of the file
    if (std::fwrite(piece->data(), 1, piece->size(), stdout) != piece->size()) return 1;
    offset += piece->size();
    length -= piece->size();
  }
  return 0;
}

bool parse(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

int main(int count, char** arguments) {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  const bool range = count == 6 && parse(arguments[4], offset) && parse(arguments[5], length);
  if (count != 2 && !range) {
    std::cerr << "usage: ckfs-example CHECKPOINT [VIEW FILE OFFSET LENGTH]\n";
    return 2;
  }
  const auto checkpoint = ckfs::Checkpoint::open(arguments[1]);
  if (!checkpoint) return report(checkpoint.error());
  return range ? copy_range(*checkpoint, arguments[2], arguments[3], offset, length)
               : list(*checkpoint);
}
