// Separate from the reader that gives them meaning, because the length of a pickle in the middle of
// a legacy torch file is not recorded: its instructions must be walked before all of it is read.
#include "format/pickle_opcode.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/checked.h"
#include "base/load_le.h"

namespace ckfs {
namespace {

enum class Form : std::uint8_t { Unknown, Fixed, Counted, Lines };

/// How an argument is written: `number` bytes, a count of `number` bytes before it, or `number`
/// lines.
struct Argument {
  Form form = Form::Unknown;
  std::uint8_t number = 0;
};

Argument argument_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::Mark:
    case Opcode::Stop:
    case Opcode::Pop:
    case Opcode::PopMark:
    case Opcode::Dup:
    case Opcode::None:
    case Opcode::BinPersId:
    case Opcode::Reduce:
    case Opcode::Append:
    case Opcode::Build:
    case Opcode::Dict:
    case Opcode::EmptyDict:
    case Opcode::Appends:
    case Opcode::List:
    case Opcode::EmptyList:
    case Opcode::Obj:
    case Opcode::SetItem:
    case Opcode::Tuple:
    case Opcode::EmptyTuple:
    case Opcode::SetItems:
    case Opcode::NewObj:
    case Opcode::Tuple1:
    case Opcode::Tuple2:
    case Opcode::Tuple3:
    case Opcode::NewTrue:
    case Opcode::NewFalse:
    case Opcode::EmptySet:
    case Opcode::AddItems:
    case Opcode::FrozenSet:
    case Opcode::NewObjEx:
    case Opcode::StackGlobal:
    case Opcode::Memoize:
    case Opcode::NextBuffer:
    case Opcode::ReadOnlyBuffer:
      return {Form::Fixed, 0};
    case Opcode::BinInt1:
    case Opcode::BinGet:
    case Opcode::BinPut:
    case Opcode::Proto:
    case Opcode::Ext1:
      return {Form::Fixed, 1};
    case Opcode::BinInt2:
    case Opcode::Ext2:
      return {Form::Fixed, 2};
    case Opcode::BinInt:
    case Opcode::LongBinGet:
    case Opcode::LongBinPut:
    case Opcode::Ext4:
      return {Form::Fixed, 4};
    case Opcode::BinFloat:
    case Opcode::Frame:  // the count of a frame, whose bytes are instructions again
      return {Form::Fixed, 8};
    case Opcode::ShortBinString:
    case Opcode::ShortBinBytes:
    case Opcode::Long1:
    case Opcode::ShortBinUnicode:
      return {Form::Counted, 1};
    // Two of these counts are signed; a negative one is more than any pickle has as unsigned.
    case Opcode::BinString:
    case Opcode::BinUnicode:
    case Opcode::BinBytes:
    case Opcode::Long4:
      return {Form::Counted, 4};
    case Opcode::BinUnicode8:
    case Opcode::BinBytes8:
    case Opcode::ByteArray8:
      return {Form::Counted, 8};
    case Opcode::Float:
    case Opcode::Int:
    case Opcode::Long:
    case Opcode::PersId:
    case Opcode::String:
    case Opcode::Unicode:
    case Opcode::Get:
    case Opcode::Put:
      return {Form::Lines, 1};
    case Opcode::Global:
    case Opcode::Inst:
      return {Form::Lines, 2};
  }
  return {};
}

std::uint64_t load_count(std::span<const std::byte> bytes, std::size_t width) {
  if (width == 1) return load_le<std::uint8_t>(bytes);
  if (width == 4) return load_le<std::uint32_t>(bytes);
  return load_le<std::uint64_t>(bytes);
}

}  // namespace

Instruction read_instruction(std::span<const std::byte> bytes) {
  Instruction instruction{.opcode = static_cast<Opcode>(bytes.front())};
  const Argument argument = argument_of(instruction.opcode);
  const std::uint8_t number = argument.number;
  instruction.argument = 1;
  switch (argument.form) {
    case Form::Unknown:
      break;
    case Form::Fixed:
      instruction.argument_size = number;
      instruction.size = 1u + number;
      break;
    case Form::Counted:
      instruction.argument = 1u + number;
      instruction.size = instruction.argument;
      if (bytes.size() >= instruction.argument) {
        instruction.argument_size = load_count(bytes.subspan(1), number);
        instruction.size = checked_add(instruction.argument, instruction.argument_size)
                               .value_or(std::numeric_limits<std::uint64_t>::max());
      }
      break;
    case Form::Lines: {
      auto at = bytes.begin() + 1;
      for (int line = 0; line < number; ++line) {
        at = std::find(at, bytes.end(), std::byte{'\n'});
        if (at == bytes.end()) {
          instruction.size = bytes.size() + 1;
          return instruction;
        }
        ++at;
      }
      instruction.size = static_cast<std::uint64_t>(at - bytes.begin());
      instruction.argument_size = instruction.size - 1;
      break;
    }
  }
  return instruction;
}

std::optional<std::int64_t> integer_of(Opcode opcode, std::span<const std::byte> argument) {
  switch (opcode) {
    case Opcode::BinInt1:
      return load_le<std::uint8_t>(argument);
    case Opcode::BinInt2:
      return load_le<std::uint16_t>(argument);
    case Opcode::BinInt:
      return load_le<std::int32_t>(argument);
    case Opcode::Long1:
    case Opcode::Long4: {
      if (argument.size() > sizeof(std::uint64_t)) return std::nullopt;
      std::uint64_t bits = 0;
      for (std::size_t i = argument.size(); i-- > 0;) {
        bits = bits << 8 | std::to_integer<std::uint64_t>(argument[i]);
      }
      const std::size_t missing = 64 - 8 * argument.size();
      // Sign-extended: two's complement of as many bytes as there are.
      return missing == 64 ? 0 : std::bit_cast<std::int64_t>(bits << missing) >> missing;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace ckfs
