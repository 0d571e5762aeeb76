// The fast kernels of tensor/quantize.h: the same arithmetic without branches, on vectors of 16
// elements. Included once for each set of instructions, in a namespace of its own (CKFS_LANES) and,
// on x86, behind a target pragma; so it has no include guard, and uses nothing of the standard
// library that a linker might take from here for others.
//
// The vectors are those of the language extension that gcc and clang share: an operation that a
// machine does not have on 64 bytes becomes several. Loops that a compiler was to make vectors of
// were not chosen: which ones it makes, and how often it divides, changed with every other line.
//
// NaN apart: codes of NaN are those of the definition, too.

namespace ckfs::CKFS_LANES {
namespace {

constexpr std::size_t kLanes = 16;
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
using Bytes = Vector<std::uint8_t>::Type;

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
#ifdef __AVX512F__
  // GCC 12 widens the halves and joins them: five instructions for one.
  if constexpr (sizeof(Codes) == 32) {
    return __builtin_bit_cast(Ints, _mm512_cvtepu16_epi32(__builtin_bit_cast(__m256i, codes)));
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
  Ints magnitudes_of(Floats values) const {
    const Ints clamped = least(bits(values) & magnitudes_, most_);
    // The exponent that gives the step between codes: that of the value, or of all subnormals. A
    // number so far above that a step is its last place makes a sum that counts the steps.
    const Ints exponent = largest(clamped & infinity_, first_normal_);
    const Ints sum = bits(numbers(clamped) + numbers(exponent + far_));
    return sum - exponent + (exponent >> (23 - kMantissa)) - offset_;
  }
  /// -1 where it is.
  Ints nan_of(Floats values) const { return (bits(values) & magnitudes_) > infinity_; }

 private:
  static constexpr std::int32_t kFar = (23 - kMantissa) << 23;
  static constexpr std::int32_t kFirstNormal = (127 + kLeast) << 23;

  const Ints magnitudes_ = all_of<Ints>(kMagnitude);
  const Ints infinity_ = all_of<Ints>(kInfinityBits);
  const Ints most_ = all_of<Ints>(kMost);
  const Ints first_normal_ = all_of<Ints>(kFirstNormal);
  const Ints far_ = all_of<Ints>(kFar);
  const Ints offset_ = all_of<Ints>(kFar + (kFirstNormal >> (23 - kMantissa)));
};

template <>
class Coder<CodeKind::E4M3> : SmallFloatCoder<3, -6, 0x43e00000> {  // 448
 public:
  Coder() {}  // NOLINT(modernize-use-equals-default)
  Ints operator()(Floats values) const {
    // NaN is the code after the largest, without a sign.
    const Ints is_nan = nan_of(values);
    return (magnitudes_of(values) - is_nan) | ((bits(values) >> 24) & sign_ & ~is_nan);
  }

 private:
  const Ints sign_ = all_of<Ints>(0x80);
};

template <>
class Coder<CodeKind::E2M1> : SmallFloatCoder<1, 0, 0x40c00000> {  // 6
 public:
  Coder() {}  // NOLINT(modernize-use-equals-default)
  /// Of values that are negative below `zero`.
  Ints operator()(Floats values, Floats zero = Floats{}) const {
    return (magnitudes_of(values) & ~nan_of(values)) | ((values < zero) & sign_);
  }

 private:
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

template <DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>
void quantize_elements(const std::byte* in, const GroupScales& scales, std::byte* out,
                       std::size_t count) {
  using Codes = typename Lane<kFrom>::Codes;
  constexpr std::size_t kWidth = sizeof(typename Lane<kFrom>::Code);
  constexpr bool kHasZero = kArithmetic == CodeArithmetic::RoundedSum;
  const Lane<kFrom> lane;
  const Coder<kKind> coder;
  std::size_t number = scales.first / scales.group;  // of the group
  float scale = 0, zero = 0;
  const auto made = [&](Codes codes) {
    return __builtin_convertvector(
        coder(before_code<kArithmetic>(lane, lane.widen(codes), scale, zero)), Bytes);
  };
  const std::size_t group = scales.group;
  std::size_t left = group - scales.first % group;  // of the group
  for (std::size_t i = 0; i < count;) {
    const std::size_t end = i + (left < count - i ? left : count - i);
    left = group;
    scale = plain_nan(scales.scales[number]);
    if constexpr (kHasZero) zero = plain_nan(scales.zeros[number]);
    ++number;
    for (; i + kLanes <= end; i += kLanes) {
      Codes codes;
      __builtin_memcpy(&codes, in + i * kWidth, sizeof(codes));
      const Bytes bytes = made(codes);
      __builtin_memcpy(out + i, &bytes, sizeof(bytes));
    }
    if (i < end) {  // becomes a vector with zeros
      Codes codes{};
      __builtin_memcpy(&codes, in + i * kWidth, (end - i) * kWidth);
      const Bytes bytes = made(codes);
      __builtin_memcpy(out + i, &bytes, end - i);
      i = end;
    }
  }
}

/// The largest of the elements.
template <typename Codes>
inline auto top_of(Codes v) {
  v = largest(v,
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = largest(v,
              __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = largest(v,
              __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = largest(v,
              __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return v[0];
}

template <DType kFrom>
void maxima_of(const std::byte* in, std::size_t group, float* maxima, std::size_t count) {
  using Codes = typename Lane<kFrom>::Codes;
  constexpr std::size_t kWidth = sizeof(typename Lane<kFrom>::Code);
  for (std::size_t i = 0; i < count; ++maxima) {
    const std::size_t here = group < count - i ? group : count - i;
    // Magnitudes are ordered as their bits are, NaN above infinity.
    Codes most{};
    std::size_t k = 0;
    for (; k + kLanes <= here; k += kLanes) {
      Codes codes;
      __builtin_memcpy(&codes, in + (i + k) * kWidth, sizeof(codes));
      most = largest(most, codes & Lane<kFrom>::kMagnitudes);
    }
    if (k < here) {
      Codes codes{};
      __builtin_memcpy(&codes, in + (i + k) * kWidth, (here - k) * kWidth);
      most = largest(most, codes & Lane<kFrom>::kMagnitudes);
    }
    const float value = Lane<kFrom>::widen_one(top_of(most));
    const bool is_nan = value != value;
    if (is_nan || value > *maxima) *maxima = value;
    i += here;
  }
}

/// The first and the second half of a vector.
template <typename Codes>
struct Halves;
template <>
struct Halves<Vector<std::uint16_t>::Type> {
  typedef std::uint16_t Type __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  static constexpr std::size_t kParts = 2;
};
template <>
struct Halves<Vector<std::uint32_t>::Type> {
  typedef std::uint32_t Type __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  static constexpr std::size_t kParts = 4;
};

/// The largest element of each of 16 vectors. Each is folded to 16 bytes first; then two at a time
/// become one, whose elements are by turns those of the two.
template <typename Codes>
inline Codes tops_of(const Codes (&vectors)[kLanes]) {
  using Part = typename Halves<Codes>::Type;
  constexpr std::size_t kParts = Halves<Codes>::kParts;
  Part parts[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    Part own[kParts];
    __builtin_memcpy(own, &vectors[i], sizeof(own));
    if constexpr (kParts == 4) {
      own[0] = largest(own[0], own[2]);
      own[1] = largest(own[1], own[3]);
    }
    parts[i] = largest(own[0], own[1]);
  }
  const auto joined = [](Part a, Part b) {
    if constexpr (kParts == 4) {
      return largest(__builtin_shufflevector(a, b, 0, 4, 1, 5),
                     __builtin_shufflevector(a, b, 2, 6, 3, 7));
    } else {
      return largest(__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
                     __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
    }
  };
  // Vector i is joined with the one half of those away, so the order is kept.
  constexpr std::size_t kEach = kLanes / kParts;
  for (std::size_t from = 0; from < kLanes; from += kEach) {
    for (std::size_t half = kEach / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) {
        parts[from + i] = joined(parts[from + i], parts[from + i + half]);
      }
    }
  }
  Codes tops;
  for (std::size_t i = 0; i < kParts; ++i) {
    __builtin_memcpy(reinterpret_cast<char*>(&tops) + i * sizeof(Part), &parts[i * kEach],
                     sizeof(Part));
  }
  return tops;
}

/// The scales of 16 groups.
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
inline void store(Ints values, std::byte* out, std::size_t count) {
  if constexpr (kBytes == 1) {
    const Bytes narrow = __builtin_convertvector(values, Bytes);
    __builtin_memcpy(out, &narrow, count);
  } else if constexpr (kBytes == 2) {
    const auto narrow = __builtin_convertvector(values, Vector<std::uint16_t>::Type);
    __builtin_memcpy(out, &narrow, count * 2);
  } else {
    __builtin_memcpy(out, &values, count * 4);
  }
}

typedef std::uint64_t Pairs __attribute__((vector_size(64)));      // NOLINT(modernize-use-using)
typedef std::uint8_t PackedBytes __attribute__((vector_size(8)));  // NOLINT(modernize-use-using)

/// Stores 16 codes.
template <GroupForm kForm>
inline std::byte* store_codes(Ints codes, std::byte* out) {
  if constexpr (ckfs::quantize::kCodesInByte<kForm> == 1) {
    store<1>(codes, out, kLanes);
    return out + kLanes;
  } else {
    // The second of two lies in the upper half of a little-endian number.
    const auto pairs = __builtin_bit_cast(Pairs, codes);
    const Pairs joined = kForm == GroupForm::Nf4 ? pairs << 4 | pairs >> 32 : pairs | pairs >> 28;
    const PackedBytes bytes = __builtin_convertvector(joined, PackedBytes);
    __builtin_memcpy(out, &bytes, sizeof(bytes));
    return out + sizeof(bytes);
  }
}

/// As many groups at a time as a vector has lanes: their maxima become one vector, so that scales
/// are made of 16 at once. kVectors: those of a group; 0: any number.
template <DType kFrom, GroupForm kForm, std::size_t kVectors>
void groups_of(const std::byte* in, const Groups& groups, std::byte* codes, std::byte* scales) {
  using Codes = typename Lane<kFrom>::Codes;
  using Form = ckfs::quantize::FormOf<kForm>;
  constexpr std::size_t kBytes = sizeof(Codes);
  constexpr std::size_t kStored = ckfs::quantize::kScaleBytes<kForm, kFrom>;
  const Lane<kFrom> lane;
  const Coder<Form::kKind> coder;
  // Half of the smallest value, which is rounded to zero.
  const auto below_zero = all_of<Floats>(kFrom == DType::F16 ? -0x1p-25F : -0x1p-134F);
  const Scaler<kForm, kFrom> scaler(lane, groups.global);
  const auto made_of = [&](Floats values, float scale) {
    if constexpr (kForm == GroupForm::Mxfp4 && kFrom != DType::F32) {
      // The scale is a power of two, so the quotient is a value of the dtype, or so small that it
      // becomes 0: all that rounding decides is whether that is negative.
      return coder(values / scale, below_zero);
    } else {
      return coder(before_code<Form::kArithmetic>(lane, values, scale, 0));
    }
  };
  const std::size_t vectors = kVectors != 0 ? kVectors : groups.values / kLanes;
  for (std::size_t first = 0; first < groups.count; first += kLanes) {
    const std::size_t here = groups.count - first < kLanes ? groups.count - first : kLanes;
    Codes tops[kLanes];
    const std::byte* at = in;
    for (std::size_t i = 0; i < here; ++i) {
      Codes top{};
      for (std::size_t k = 0; k < vectors; ++k, at += kBytes) {
        Codes values;
        __builtin_memcpy(&values, at, kBytes);
        top = largest(top, values & Lane<kFrom>::kMagnitudes);
      }
      tops[i] = top;
    }
    for (std::size_t i = here; i < kLanes; ++i) tops[i] = Codes{};
    const Scales made = scaler(tops_of(tops));
    if (scales != nullptr) {
      store<kStored>(made.stored, scales, here);
      scales += here * kStored;
    }
    if (codes != nullptr) {
      float used[kLanes];
      __builtin_memcpy(used, &made.used, sizeof(used));
      at = in;
      for (std::size_t i = 0; i < here; ++i) {
        for (std::size_t k = 0; k < vectors; ++k, at += kBytes) {
          Codes values;
          __builtin_memcpy(&values, at, kBytes);
          codes = store_codes<kForm>(made_of(lane.widen(values), used[i]), codes);
        }
      }
    }
    in = at;
  }
}

template <DType kFrom, GroupForm kForm>
void quantize_groups_of(const std::byte* in, const Groups& groups, std::byte* codes,
                        std::byte* scales) {
  if (groups.values == kLanes) return groups_of<kFrom, kForm, 1>(in, groups, codes, scales);
  if (groups.values == 2 * kLanes) return groups_of<kFrom, kForm, 2>(in, groups, codes, scales);
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
