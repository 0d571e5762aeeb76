// What a rule does to the tensors that it takes, each operation by those of TensorExpr.
//
// On its way through a rule a group of tensors is a Flow: a column for each pattern that the rule
// takes (later: for each part of a split), and in each column a tensor for each value of the
// variables that are still to be stacked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/types.h>

#include "base/error.h"
#include "expr/tensor_expr.h"
#include "format/json_tree.h"
#include "view/recipes/expression.h"

namespace ckfs {

/// Variables of a rule by name: captures, then those of `let`, then those of `unstack`.
using Variables = std::vector<std::string>;

inline constexpr std::size_t kMaxParts = std::size_t{1} << 20;  // tensors of a group at a time
inline constexpr std::size_t kMaxNumbers = 64;                  // of an operation
inline constexpr std::size_t kMaxKeys = 4;  // variables of a rule that are stacked or unstacked

struct FlowPart {
  std::array<std::int32_t, kMaxKeys> keys{};  // by number of the key; 0 where stacked
  TensorExpr expr;
};

struct FlowColumn {
  std::string_view name;  // of its first tensor, for messages
  std::vector<FlowPart> parts;
};

struct Flow {
  std::vector<FlowColumn> columns;
  Exactness exactness = Exactness::BitExact;  // the least of the tensors taken and of operations
  DType taken = DType::F32;                   // of the group's first tensor, before any operation
  /// What the dimensions of the first column's first tensor are, as a mesh of devices cuts them;
  /// empty: not known.
  /// Operations that move dimensions move their names.
  std::vector<std::string> axes = {};
};

/// What the inverse of an operation has to know of the tensors before it: the shape of each column,
/// and the dtype.
struct FlowShape {
  std::vector<std::vector<std::int64_t>> shapes;
  DType dtype = DType::F32;
};

/// Immutable.
struct Operation {
  enum class Kind : std::uint8_t {
    Stack,       // tensors of a variable's values 0, 1, ... on a new dimension
    Unstack,     // its inverse: one tensor for each index of a dimension
    ConcatOver,  // tensors of a variable's values one after another
    Concat,      // columns one after another
    Split,       // its inverse: columns of equal, or of given, sizes
    Interleave,  // columns element by element
    Deinterleave,
    Transpose,
    Reshape,
    Slice,
    Pad,
    Shape,    // only checks it
    Promote,  // all tensors to their common dtype
    Cast,
    Multiply,
    Add,
    FlushSubnormals,
    CanonicalNan,
    Fill,  // every element is one number; the tensor says no more than a shape and a dtype
  };
  Kind kind = Kind::Cast;
  std::uint32_t line = 0;
  std::size_t key = 0;              // of Stack, Unstack, ConcatOver: number in Rule::keys
  std::string variable;             // its name
  Expression dim;                   // of all that have one dimension
  std::optional<Expression> count;  // of Stack, Unstack: how many there must be (below 0: any)
  std::vector<Expression> numbers;  // permutation; shape; sizes or one number of parts of Split;
                                    // begin, count, step of Slice; before, after or to of Pad;
                                    // what Shape wants; the shape of Fill (empty: the tensor's)
  bool sizes = false;        // Split: numbers are sizes; Pad: the number is the size afterwards;
                             // Fill: it has a shape
  Expression operand;        // of Multiply, Add, Fill
  DType dtype = DType::F32;  // of Cast, Fill
  /// Cast: to Flow::taken, or to the view's dtype if it has one; Fill: in the tensor's dtype.
  enum class Other : std::uint8_t { None, Taken, View };
  Other other = Other::None;
  bool integers = false;  // Cast: takes integers, too

  /// `keys` are the rule's, to which Stack, Unstack and ConcatOver add. Errors: Corrupt (with file
  /// and line).
  static Result<Operation> parse(const JsonNode& node, std::string_view file,
                                 const Variables& variables, std::vector<std::string>& keys);

  /// The tensors after it. Errors: those of TensorExpr and expressions; the caller says where.
  Result<Flow> run(Flow flow, const Scope& scope) const;

  /// The inverse operation: it restores the shape and, except for casts that narrow and arithmetic
  /// that rounds, the values. nullopt: there is none (slice, concat over a variable, operations
  /// that make values equal (fill), split and deinterleave of several columns, interleave of more
  /// than kMaxNumbers), or the numbers do not determine it (a dimension to stack on that depends on
  /// the tensor's shape, anything that depends on the shape where several tensors have different
  /// ones, an unknown number). An unknown dimension to work along is an error when the inverse
  /// runs. `scope`: that of the rule, without a shape. Requires: `before` has a shape.
  std::optional<Operation> inverse(const FlowShape& before, Scope scope = {}) const;

 private:
  /// run() without the names of dimensions.
  Result<Flow> run_on(Flow flow, const Scope& scope) const;
};

}  // namespace ckfs
