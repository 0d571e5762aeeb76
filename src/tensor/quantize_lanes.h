// The fast kernels of tensor/quantize.h: the same arithmetic without branches, on 16 elements at a
// time. Included once for each set of instructions, in a namespace of its own (CKFS_LANES), with
// the bytes of its vectors (CKFS_VECTOR_BYTES) and, on x86, behind a target pragma; so it has no
// include guard, and uses nothing of the standard library that a linker might take from here for
// others.
//
// The vectors are those of the language extension that gcc and clang share, so that one source
// makes AVX-512, AVX2 and NEON. They are as wide as the machine's: GCC 12 takes wider ones apart,
// many operations down to single elements. Loops that a compiler was to make vectors of were not
// chosen: which ones it makes, and how often it divides, changed with every other line.
//
// NaN apart: codes of NaN are those of the definition, too.

namespace ckfs::CKFS_LANES {
namespace {

constexpr std::size_t kLanes = CKFS_VECTOR_BYTES / 4;
constexpr std::size_t kStep = 16;  // elements at a time
constexpr std::size_t kParts = kStep / kLanes;
constexpr std::int32_t kMagnitude = 0x7fffffff;
constexpr std::int32_t kInfinityBits = 0x7f800000;

template <typename T>
struct Vector {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));  // NOLINT(modernize-use-using)
};
using Floats = Vector<float>::Type;
// Signed throughout: AVX2 compares no unsigned numbers.
using Ints = Vector<std::int32_t>::Type;
using Words = Vector<std::uint32_t>::Type;
typedef std::uint8_t Bytes __attribute__((vector_size(kStep)));  // NOLINT(modernize-use-using)

/// 16 codes, in the lowest bits of each.
struct Step {
  Ints parts[kParts];
};

/// A constant that stays in a register or is an operand in memory: gcc would make a vector of the
/// number in every round, and compare twice for a minimum.
template <typename V, typename T>
inline V all_of(T value) {
  V vector = V{} + value;
  asm("" : "+m"(vector));  // NOLINT(hicpp-no-assembler)
  return vector;
}

inline Ints bits(Floats values) {
  return __builtin_bit_cast(Ints, values);
}
inline Floats numbers(Ints bits) {
  return __builtin_bit_cast(Floats, bits);
}
template <typename V>
inline V least(V a, V b) {
  return a < b ? a : b;
}
template <typename V>
inline V largest(V a, V b) {
  return a > b ? a : b;
}

/// Codes of 16 bits, and 32.
template <typename Codes>
inline Ints wide(Codes codes) {
#if CKFS_VECTOR_BYTES == 64 && !defined(__clang__)
  // GCC 12 widens the halves and joins them: five instructions for one. (clang knows no such
  // pragma, and does not take the instruction.)
  if constexpr (sizeof(Codes) == 32) {
    return __builtin_bit_cast(
        Ints, _mm512_maskz_cvtepu16_epi32(0xffff, __builtin_bit_cast(__m256i, codes)));
  }
#elif CKFS_VECTOR_BYTES == 16 && defined(__aarch64__)
  // For NEON, GCC 12 would widen four numbers one by one: they are half of eight, each followed by
  // a zero.
  if constexpr (sizeof(Codes) == 8) {
    typedef std::uint16_t Eight __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
    Eight eight{};
    __builtin_memcpy(&eight, &codes, sizeof(codes));
    return __builtin_bit_cast(Ints,
                              __builtin_shufflevector(eight, Eight{}, 0, 8, 1, 9, 2, 10, 3, 11));
  }
#endif
  return __builtin_bit_cast(Ints, __builtin_convertvector(codes, Words));
}

/// A dtype of values. Objects hold the constants of a loop. Their constructors are written out: at
/// -O0, GCC 12 cannot compile implicit ones that have vectors of 64 bytes.
template <DType kFrom>
struct Lane;

template <>
struct Lane<DType::F32> {
  using Code = std::uint32_t;
  using Codes = Vector<Code>::Type;

  Floats widen(Codes codes) const { return __builtin_bit_cast(Floats, codes); }
  Floats rounded(Floats values) const { return values; }
  static float widen_one(Code code) { return __builtin_bit_cast(float, code); }
  Ints narrowed(Floats values) const { return bits(values); }
  static constexpr Code kMagnitudes = 0x7fffffff;
};

template <>
struct Lane<DType::BF16> {
  using Code = std::uint16_t;
  using Codes = Vector<Code>::Type;

  Lane() {}  // NOLINT(modernize-use-equals-default)
  Floats widen(Codes codes) const { return numbers(wide(codes) << 16); }
  /// NaNs are results of arithmetic on widened ones and on plain_nan(), whose lower half is zero:
  /// the sum does not carry into their signs.
  Floats rounded(Floats values) const {
    const Ints in = bits(values);
    return numbers((in + half_ + ((in >> 16) & one_)) & kept_);
  }
  static float widen_one(Code code) { return __builtin_bit_cast(float, std::uint32_t{code} << 16); }
  /// The bits of values that the dtype has, without signs.
  Ints narrowed(Floats values) const { return bits(values) >> 16; }
  static constexpr Code kMagnitudes = 0x7fff;

 private:
  const Ints half_ = all_of<Ints>(0x7fff);
  const Ints one_ = all_of<Ints>(1);
  const Ints kept_ = all_of<Ints>(~0xffff);
};

template <>
struct Lane<DType::F16> {
  using Code = std::uint16_t;
  using Codes = Vector<Code>::Type;

  Lane() {}  // NOLINT(modernize-use-equals-default)
  Floats widen(Codes codes) const {
    const Ints in = wide(codes);
    const Ints magnitude = in & magnitudes_;
    const Ints sign = (in ^ magnitude) << 16;
    // Normal numbers change their bias; infinity and NaN have the highest exponent there, too; a
    // subnormal is a count of 2^-24.
    const Ints above = magnitude >= infinity_ ? bias_of_infinity_ : bias_;
    const Ints normal = (magnitude << 13) + above;
    const Ints small = bits(__builtin_convertvector(magnitude, Floats) * least_);
    return numbers((magnitude < first_normal_ ? small : normal) | sign);
  }
  /// Of NaNs as for BF16.
  Floats rounded(Floats values) const {
    const Ints in = bits(values);
    const Ints magnitude = in & wide_magnitudes_;
    const Ints normal = (magnitude + half_ + ((magnitude >> 13) & one_)) & kept_;
    // Too large numbers become infinity, and NaN stays what it is.
    const Ints large = normal >= too_large_ ? largest(wide_infinity_, magnitude) : normal;
    // A sum with 0.5 has no place below 2^-24.
    const Ints small = bits((numbers(magnitude) + last_place_) - last_place_);
    return numbers((magnitude < wide_first_normal_ ? small : large) | (in ^ magnitude));
  }
  static float widen_one(Code code) { return Lane().widen(Codes{} + code)[0]; }
  Ints narrowed(Floats values) const {
    const Ints in = bits(values);
    const Ints large = in >= wide_infinity_ ? bias_of_infinity_ : bias_;
    const Ints counted = __builtin_convertvector(values * most_counts_, Ints);
    return in < wide_first_normal_ ? counted : (in - large) >> 13;
  }
  static constexpr Code kMagnitudes = 0x7fff;

 private:
  const Ints magnitudes_ = all_of<Ints>(0x7fff);
  const Ints infinity_ = all_of<Ints>(0x7c00);
  const Ints bias_of_infinity_ = all_of<Ints>(0x70000000);
  const Ints bias_ = all_of<Ints>(0x38000000);
  const Ints first_normal_ = all_of<Ints>(0x400);
  const Floats most_counts_ = all_of<Floats>(0x1p24F);
  const Floats least_ = all_of<Floats>(0x1p-24F);
  const Ints wide_magnitudes_ = all_of<Ints>(kMagnitude);
  const Ints wide_infinity_ = all_of<Ints>(kInfinityBits);
  const Ints too_large_ = all_of<Ints>(0x47800000);
  const Ints wide_first_normal_ = all_of<Ints>(0x38800000);
  const Ints half_ = all_of<Ints>(0xfff);
  const Ints one_ = all_of<Ints>(1);
  const Ints kept_ = all_of<Ints>(~0x1fff);
  const Floats last_place_ = all_of<Floats>(0.5F);
};

/// Makes codes of values, in the lowest bits of each element.
template <CodeKind kKind>
class Coder;

/// Floats of a few bits, without their signs. The smallest exponent of a normal number is `kLeast`,
/// the largest number `kMost`, as bits of a float.
template <int kMantissa, int kLeast, std::int32_t kMost>
class SmallFloatCoder {
 public:
  SmallFloatCoder() {}  // NOLINT(modernize-use-equals-default)
  /// In the lowest bits; those above have no meaning.
  Ints magnitudes_of(Floats values) const {
    const Ints clamped = least(bits(values) & magnitudes_, most_);
    // The exponent that gives the step between codes: that of the value, or of all subnormals. A
    // number so far above that a step is its last place makes a sum that counts the steps.
    const Ints exponent = largest(clamped & infinity_, first_normal_);
    const Ints sum = bits(numbers(clamped) + numbers(exponent + far_));
    return sum + (exponent >> (23 - kMantissa));
  }
  /// -1 where it is.
  Ints nan_of(Floats values) const { return (bits(values) & magnitudes_) > infinity_; }

 private:
  static constexpr std::int32_t kFirstNormal = (127 + kLeast) << 23;
  // An even number of steps more makes up for the exponent's bias: ties stay what they are.
  static constexpr std::int32_t kSteps = -(kFirstNormal >> (23 - kMantissa)) & 0xff;
  static_assert(kSteps % 2 == 0);
  static constexpr std::int32_t kFar = ((23 - kMantissa) << 23) + kSteps;

  const Ints magnitudes_ = all_of<Ints>(kMagnitude);
  const Ints infinity_ = all_of<Ints>(kInfinityBits);
  const Ints most_ = all_of<Ints>(kMost);
  const Ints first_normal_ = all_of<Ints>(kFirstNormal);
  const Ints far_ = all_of<Ints>(kFar);
};

template <>
class Coder<CodeKind::E4M3> : SmallFloatCoder<3, -6, 0x43e00000> {  // 448
 public:
  Coder() {}  // NOLINT(modernize-use-equals-default)
  Ints operator()(Floats values) const {
    // NaN is the code after the largest, without a sign.
    const Ints is_nan = nan_of(values);
    return ((magnitudes_of(values) & code_) - is_nan) | ((bits(values) >> 24) & sign_ & ~is_nan);
  }

 private:
  const Ints code_ = all_of<Ints>(0x7f);
  const Ints sign_ = all_of<Ints>(0x80);
};

template <>
class Coder<CodeKind::E2M1> : SmallFloatCoder<1, 0, 0x40c00000> {  // 6
 public:
  Coder() {}  // NOLINT(modernize-use-equals-default)
  /// Of values that are negative below `zero`.
  Ints operator()(Floats values, Floats zero = Floats{}) const {
    return (magnitudes_of(values) & code_ & ~nan_of(values)) | ((values < zero) & sign_);
  }

 private:
  const Ints code_ = all_of<Ints>(7);
  const Ints sign_ = all_of<Ints>(8);
};

template <std::int32_t kLow, std::int32_t kHigh, std::int32_t kAdded>
class IntegerCoder {
 public:
  IntegerCoder() {}  // NOLINT(modernize-use-equals-default)
  Ints operator()(Floats values) const {
    const Floats clamped = least(largest(low_, values), high_);
    // A sum with 1.5 * 2^23 has no place below 1.
    const Ints whole = bits(clamped + no_fraction_) - offset_;
    return values == values ? whole : of_nan_;
  }

 private:
  const Floats low_ = all_of<Floats>(static_cast<float>(kLow));
  const Floats high_ = all_of<Floats>(static_cast<float>(kHigh));
  const Floats no_fraction_ = all_of<Floats>(0x1.8p23F);
  const Ints offset_ = all_of<Ints>(0x4b400000 - kAdded);
  const Ints of_nan_ = all_of<Ints>(kAdded);
};

template <>
class Coder<CodeKind::I8> : public IntegerCoder<-128, 127, 0> {};
template <>
class Coder<CodeKind::I4> : public IntegerCoder<-8, 7, 8> {};

template <>
class Coder<CodeKind::NF4> {
 public:
  Coder() {
    for (int i = 0; i < 15; ++i) {
      borders_[i] = all_of<Floats>((kNf4Table[i] + kNf4Table[i + 1]) / 2);
    }
  }
  Ints operator()(Floats values) const {
    Ints larger{};
    for (const Floats border : borders_) larger += values > border;
    return -larger;
  }

 private:
  Floats borders_[15];
};

/// The number; of all NaNs the same one.
inline float plain_nan(float number) {
  return number == number ? number : __builtin_nanf("");
}

template <CodeArithmetic kArithmetic, typename Lane>
inline Floats before_code(const Lane& lane, Floats values, float scale, float zero) {
  if constexpr (kArithmetic == CodeArithmetic::Product) return values * scale;
  const Floats quotients = values / scale;
  if constexpr (kArithmetic == CodeArithmetic::Quotient) return quotients;
  if constexpr (kArithmetic == CodeArithmetic::RoundedQuotient) return lane.rounded(quotients);
  return lane.rounded(lane.rounded(quotients) + zero);
}

/// Use(the next elements, in vectors) for each part of 16.
template <DType kFrom, typename Use>
inline Step each_part(const std::byte* in, Use use) {
  using Codes = typename Lane<kFrom>::Codes;
  Step step;
  for (std::size_t i = 0; i < kParts; ++i) {
    Codes codes;
    __builtin_memcpy(&codes, in + i * sizeof(Codes), sizeof(codes));
    step.parts[i] = use(codes);
  }
  return step;
}

/// The lowest bytes of elements that have no others.
inline Bytes narrowed(const Step& step) {
#if CKFS_VECTOR_BYTES == 64
  return __builtin_convertvector(step.parts[0], Bytes);
#else
  // The even ones of 16 and then of 8 bits: what machines do in an instruction or two.
  typedef std::uint16_t Halves __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  Halves words[4];
  __builtin_memcpy(words, &step, sizeof(words));
  const auto low = __builtin_bit_cast(
      Bytes, __builtin_shufflevector(words[0], words[1], 0, 2, 4, 6, 8, 10, 12, 14));
  const auto high = __builtin_bit_cast(
      Bytes, __builtin_shufflevector(words[2], words[3], 0, 2, 4, 6, 8, 10, 12, 14));
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                 30);
#endif
}

template <DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>
void quantize_elements(const std::byte* in, const GroupScales& scales, std::byte* out,
                       std::size_t count) {
  constexpr std::size_t kWidth = sizeof(typename Lane<kFrom>::Code);
  constexpr bool kHasZero = kArithmetic == CodeArithmetic::RoundedSum;
  const Lane<kFrom> lane;
  const Coder<kKind> coder;
  std::size_t number = scales.first / scales.group;  // of the group
  float scale = 0, zero = 0;
  const auto made = [&](const std::byte* from) {
    return narrowed(each_part<kFrom>(from, [&](auto codes) {
      return coder(before_code<kArithmetic>(lane, lane.widen(codes), scale, zero));
    }));
  };
  const std::size_t group = scales.group;
  std::size_t left = group - scales.first % group;  // of the group
  for (std::size_t i = 0; i < count;) {
    const std::size_t end = i + (left < count - i ? left : count - i);
    left = group;
    scale = plain_nan(scales.scales[number]);
    if constexpr (kHasZero) zero = plain_nan(scales.zeros[number]);
    ++number;
    for (; i + kStep <= end; i += kStep) {
      const Bytes bytes = made(in + i * kWidth);
      __builtin_memcpy(out + i, &bytes, sizeof(bytes));
    }
    if (i < end) {  // becomes a step with zeros
      std::byte rest[kStep * kWidth] = {};
      __builtin_memcpy(rest, in + i * kWidth, (end - i) * kWidth);
      const Bytes bytes = made(rest);
      __builtin_memcpy(out + i, &bytes, end - i);
      i = end;
    }
  }
}

/// Vectors that maxima are taken in, and what these are folded to.
template <typename Code>
struct Run {
  static constexpr std::size_t kBytes =
      kStep * sizeof(Code) < CKFS_VECTOR_BYTES ? kStep * sizeof(Code) : CKFS_VECTOR_BYTES;
  typedef Code Type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using)
  typedef Code Part __attribute__((vector_size(16)));      // NOLINT(modernize-use-using)
};

/// The largest magnitudes of `count` elements, in no order. Magnitudes are ordered as their bits
/// are, NaN above infinity.
template <DType kFrom>
inline auto top_part_of(const std::byte* in, std::size_t count) {
  using Code = typename Lane<kFrom>::Code;
  using Vector = typename Run<Code>::Type;
  using Part = typename Run<Code>::Part;
  constexpr std::size_t kEach = sizeof(Vector) / sizeof(Code);
  Vector top{};
  std::size_t i = 0;
  for (; i + kEach <= count; i += kEach) {
    Vector codes;
    __builtin_memcpy(&codes, in + i * sizeof(Code), sizeof(codes));
    top = largest(top, codes & Lane<kFrom>::kMagnitudes);
  }
  if (i < count) {
    Vector codes{};
    __builtin_memcpy(&codes, in + i * sizeof(Code), (count - i) * sizeof(Code));
    top = largest(top, codes & Lane<kFrom>::kMagnitudes);
  }
  Part parts[sizeof(Vector) / sizeof(Part)];
  __builtin_memcpy(parts, &top, sizeof(parts));
  if constexpr (sizeof(Vector) == 64) {
    parts[0] = largest(parts[0], parts[2]);
    parts[1] = largest(parts[1], parts[3]);
  }
  if constexpr (sizeof(Vector) >= 32) parts[0] = largest(parts[0], parts[1]);
  return parts[0];
}

/// The larger ones of the halves of `a` and of `b`, by turns one of `a` and one of `b`.
template <typename Part>
inline Part joined(Part a, Part b) {
  if constexpr (sizeof(a[0]) == 4) {
    return largest(__builtin_shufflevector(a, b, 0, 4, 1, 5),
                   __builtin_shufflevector(a, b, 2, 6, 3, 7));
  } else {
    return largest(__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
                   __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
  }
}

template <DType kFrom>
void maxima_of(const std::byte* in, std::size_t group, float* maxima, std::size_t count) {
  constexpr std::size_t kWidth = sizeof(typename Lane<kFrom>::Code);
  for (std::size_t i = 0; i < count; ++maxima) {
    const std::size_t here = group < count - i ? group : count - i;
    auto top = top_part_of<kFrom>(in + i * kWidth, here);
    for (std::size_t left = sizeof(top) / kWidth; left > 1; left /= 2) top = joined(top, top);
    const float value = Lane<kFrom>::widen_one(top[0]);
    const bool is_nan = value != value;
    if (is_nan || value > *maxima) *maxima = value;
    i += here;
  }
}

/// The largest magnitude of each of 16 groups of `values`; 0 of those from `count` on.
template <DType kFrom>
struct Tops {
  using Code = typename Lane<kFrom>::Code;
  using Part = typename Run<Code>::Part;
  static constexpr std::size_t kEach = sizeof(Part) / sizeof(Code);
  Part parts[kStep / kEach];
};
template <DType kFrom>
inline Tops<kFrom> tops_of(const std::byte* in, std::size_t values, std::size_t count) {
  using Part = typename Tops<kFrom>::Part;
  constexpr std::size_t kEach = Tops<kFrom>::kEach;
  const std::size_t group_bytes = values * sizeof(typename Lane<kFrom>::Code);
  Part parts[kStep];
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = top_part_of<kFrom>(in + i * group_bytes, values);
  }
  for (std::size_t i = count; i < kStep; ++i) parts[i] = Part{};
  // Each is joined with the one half of those away, so the order is kept.
  Tops<kFrom> tops;
  for (std::size_t from = 0; from < kStep; from += kEach) {
    for (std::size_t half = kEach / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) {
        parts[from + i] = joined(parts[from + i], parts[from + i + half]);
      }
    }
    tops.parts[from / kEach] = parts[from];
  }
  return tops;
}

/// The scales of groups.
struct Scales {
  Floats used;
  Ints stored;
};

/// Makes them of the largest magnitudes.
template <GroupForm kForm, DType kFrom>
class Scaler {
 public:
  Scaler(const Lane<kFrom>& lane, float /*global*/) : lane_(lane) {}

  Scales operator()(typename Lane<kFrom>::Codes tops) const {
    constexpr std::int32_t kFull = ckfs::quantize::kFullExponent<kFrom>;
    constexpr std::int32_t kMantissa = ckfs::quantize::kMantissaBits<kFrom>;
    const Ints top = wide(tops);
    const Ints exponent = __builtin_bit_cast(
        Ints, (__builtin_bit_cast(Words, top) + (1U << (kMantissa - 2))) >> kMantissa);
    constexpr std::int32_t kOffset =
        127 - ckfs::quantize::kBias<kFrom> - ckfs::quantize::kCodeExponent<kForm>;
    Ints byte = largest(exponent + kOffset, Ints{});
    byte = exponent == 0 ? Ints{} : exponent >= kFull ? Ints{} + 255 : byte;
    if constexpr (kFrom == DType::F32) byte = top > kInfinityBits ? Ints{} : byte;
    const Ints power = byte == 0 ? Ints{} + 0x00400000 : byte << 23;
    Floats scale = lane_.rounded(numbers(power));
    scale = scale == 0 ? Floats{} + 1.0F : scale;
    const Ints stored = bits(scale) >> 23;
    return {scale, stored == 255 ? Ints{} + 127 : stored};
  }

 private:
  const Lane<kFrom>& lane_;
};

template <DType kFrom>
class Scaler<GroupForm::Int4, kFrom> {
 public:
  Scaler(const Lane<kFrom>& lane, float /*global*/) : lane_(lane) {}

  Scales operator()(typename Lane<kFrom>::Codes tops) const {
    Floats scale = lane_.rounded(lane_.widen(tops) / 7.5F);
    scale = scale == 0 ? Floats{} + ckfs::quantize::kEps<kFrom> : scale;
    // As any NaN is rounded to 16 bits.
    if constexpr (kFrom != DType::F32)
      scale = scale == scale ? scale : Floats{} + __builtin_nanf("");
    return {scale, lane_.narrowed(scale)};
  }

 private:
  const Lane<kFrom>& lane_;
};

template <DType kFrom>
class Scaler<GroupForm::Nvfp4, kFrom> {
 public:
  Scaler(const Lane<kFrom>& lane, float global) : lane_(lane), global_(global) {}

  Scales operator()(typename Lane<kFrom>::Codes tops) const {
    const Floats local = lane_.rounded(lane_.widen(tops) / 6.0F);
    Ints code = coder_(local * global_);
    code = (code & 0x7f) == 0 ? Ints{} + 0x20 : code;  // 0.125
    // A subnormal code is a count of 2^-9.
    const Floats small = __builtin_convertvector(code, Floats) * 0x1p-9F;
    Floats value = code < 8 ? small : numbers((code << 20) + (120 << 23));
    value = code == 0x7f ? Floats{} + __builtin_nanf("") : value;
    return {value / global_, code};
  }

 private:
  const Lane<kFrom>& lane_;
  const Coder<CodeKind::E4M3> coder_;
  const float global_;
};

template <DType kFrom>
class Scaler<GroupForm::Nf4, kFrom> {
 public:
  Scaler(const Lane<kFrom>& lane, float /*global*/) : lane_(lane) {}

  Scales operator()(typename Lane<kFrom>::Codes tops) const {
    const Floats top = lane_.widen(tops);
    return {1.0F / (top < 1e-38F ? Floats{} + 1e-38F : top), bits(top)};
  }

 private:
  const Lane<kFrom>& lane_;
};

/// Stores the lowest bits of each of the first `count` elements.
template <std::size_t kBytes>
inline void store(const Step& step, std::byte* out, std::size_t count) {
  if constexpr (kBytes == 1) {
    const Bytes bytes = narrowed(step);
    __builtin_memcpy(out, &bytes, count);
  } else if constexpr (kBytes == 2) {
    std::int32_t wide[kStep];
    __builtin_memcpy(wide, &step, sizeof(wide));
    for (std::size_t i = 0; i < count; ++i) __builtin_memcpy(out + i * 2, &wide[i], 2);
  } else {
    __builtin_memcpy(out, &step, count * 4);
  }
}

typedef std::uint8_t PackedBytes __attribute__((vector_size(8)));  // NOLINT(modernize-use-using)

/// Two codes in each byte.
template <bool kHighFirst>
inline PackedBytes packed(const Step& codes) {
  // The second of two lies in the upper half of a little-endian number.
#if CKFS_VECTOR_BYTES == 64
  typedef std::uint64_t Pairs __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
  const auto pairs = __builtin_bit_cast(Pairs, codes.parts[0]);
  const Pairs both = kHighFirst ? pairs << 4 | pairs >> 32 : pairs | pairs >> 28;
  return __builtin_convertvector(both, PackedBytes);
#else
  typedef std::uint16_t Pairs __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  const auto pairs = __builtin_bit_cast(Pairs, narrowed(codes));
  const auto both =
      __builtin_bit_cast(Bytes, kHighFirst ? pairs << 4 | pairs >> 8 : pairs | pairs >> 4);
  const Bytes bytes =
      __builtin_shufflevector(both, both, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  PackedBytes low;
  __builtin_memcpy(&low, &bytes, sizeof(low));
  return low;
#endif
}

/// 16 groups at a time: their maxima become vectors, so that scales are made of many at once.
/// kValues: those of a group; 0: any multiple of 16.
template <DType kFrom, GroupForm kForm, std::size_t kValues>
void groups_of(const std::byte* in, const Groups& groups, std::byte* codes, std::byte* scales) {
  using Codes = typename Lane<kFrom>::Codes;
  using Form = ckfs::quantize::FormOf<kForm>;
  constexpr std::size_t kBytes = kStep * sizeof(typename Lane<kFrom>::Code);
  constexpr std::size_t kStored = ckfs::quantize::kScaleBytes<kForm, kFrom>;
  const Lane<kFrom> lane;
  const Coder<Form::kKind> coder;
  // Half of the smallest value, which is rounded to zero.
  const auto below_zero = all_of<Floats>(kFrom == DType::F16 ? -0x1p-25F : -0x1p-134F);
  const Scaler<kForm, kFrom> scaler(lane, groups.global);
  const auto code_of = [&](Floats values, float scale) {
    if constexpr (kForm == GroupForm::Mxfp4 && kFrom != DType::F32) {
      // The scale is a power of two, so the quotient is a value of the dtype, or so small that it
      // becomes 0: all that rounding decides is whether that is negative.
      return coder(values / scale, below_zero);
    } else {
      return coder(before_code<Form::kArithmetic>(lane, values, scale, 0));
    }
  };
  const std::size_t values = kValues != 0 ? kValues : groups.values;
  for (std::size_t first = 0; first < groups.count; first += kStep) {
    const std::size_t here = groups.count - first < kStep ? groups.count - first : kStep;
    const Tops<kFrom> tops = tops_of<kFrom>(in, values, here);
    static_assert(sizeof(tops) == kBytes);
    Floats used_parts[kParts];
    Step stored;
    for (std::size_t i = 0; i < kParts; ++i) {
      Codes own;
      __builtin_memcpy(&own, reinterpret_cast<const char*>(&tops) + i * sizeof(own), sizeof(own));
      const Scales made = scaler(own);
      used_parts[i] = made.used;
      stored.parts[i] = made.stored;
    }
    if (scales != nullptr) {
      store<kStored>(stored, scales, here);
      scales += here * kStored;
    }
    if (codes != nullptr) {
      float used[kStep];
      __builtin_memcpy(used, used_parts, sizeof(used));
      const std::byte* at = in;
      for (std::size_t i = 0; i < here; ++i) {
        for (std::size_t k = 0; k < values; k += kStep, at += kBytes) {
          const Step step =
              each_part<kFrom>(at, [&](Codes own) { return code_of(lane.widen(own), used[i]); });
          if constexpr (ckfs::quantize::kCodesInByte<kForm> == 1) {
            const Bytes bytes = narrowed(step);
            __builtin_memcpy(codes, &bytes, sizeof(bytes));
            codes += sizeof(bytes);
          } else {
            const PackedBytes bytes = packed < kForm == GroupForm::Nf4 > (step);
            __builtin_memcpy(codes, &bytes, sizeof(bytes));
            codes += sizeof(bytes);
          }
        }
      }
    }
    in += here * values * sizeof(typename Lane<kFrom>::Code);
  }
}

template <DType kFrom, GroupForm kForm>
void quantize_groups_of(const std::byte* in, const Groups& groups, std::byte* codes,
                        std::byte* scales) {
  if (groups.values == 16) return groups_of<kFrom, kForm, 16>(in, groups, codes, scales);
  if (groups.values == 32) return groups_of<kFrom, kForm, 32>(in, groups, codes, scales);
  return groups_of<kFrom, kForm, 0>(in, groups, codes, scales);
}

}  // namespace

QuantizeGroupsKernel quantize_groups(GroupForm form, DType from) {
  return ckfs::quantize::select_groups(form, from, []<DType kFrom, GroupForm kForm>() {
    return QuantizeGroupsKernel{quantize_groups_of<kFrom, kForm>};
  });
}

QuantizeKernel quantize(DType from, CodeKind kind, CodeArithmetic arithmetic) {
  return ckfs::quantize::select_quantize(
      from, kind, arithmetic, []<DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>() {
        return QuantizeKernel{quantize_elements<kFrom, kKind, kArithmetic>};
      });
}

MaximaKernel maxima(DType from) {
  return select<DType::BF16, DType::F16, DType::F32>(
      from, []<DType kFrom>() { return MaximaKernel{maxima_of<kFrom>}; });
}

}  // namespace ckfs::CKFS_LANES
